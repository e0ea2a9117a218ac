"""The model's forward pass recorded once as a flat list of tensor operations.

On small models most of a step's time is Python walking through the model's modules: a step of 64 requests on
a 3-layer model took 1.9 ms with modules and 0.8 ms recorded. The model's own code is run once under
`torch.jit.trace`; the weights of its linear layers are inputs of the recording, so that an adapter's merged
weights run through it too. Attention stays ours: the recording calls it as one operation.

A second recording takes the weights of several adapters, one on the other in a `Stack`, and the tokens in
their order. A linear layer then is one grouped product: the first `ends[0]` tokens by the first weight, those
up to `ends[1]` by the second, and so on. T packed tokens, A weights in the stack.

A model that decides in Python by the values or number of tokens (some rotary embeddings, some expert routers)
cannot be recorded. Tracing warns of such decisions; then, or when a recording does not compute exactly what
the model does at other lengths, the model runs through its modules as usual.
"""

from __future__ import annotations

import logging
import secrets
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from art.engine.builtin.step_batch import Attends, LayerCall, PackedAttention, fresh_part

SPARE = 4
"""A stack may hold this many weights that no token of the step uses: each costs some microseconds a step."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Weights of the linear layers, in the recording's order."""

    numbers: tuple[int, ...]
    """Adapters, ascending."""
    weights: list[Tensor]
    """[A, out, in] each."""


class Stacks:
    """Keeps the last stack: the requests of a batch change from step to step, the adapters seldom."""

    def __init__(self, weights_of: Callable[[int], list[Tensor] | None]) -> None:
        self._weights_of = weights_of
        """Merged weights of an adapter by number; None where they are not kept."""
        self._stack: Stack | None = None

    def stack_of(self, numbers: Sequence[int]) -> Stack | None:
        """A stack with these adapters among others; None when one of them is not merged."""
        kept = self._stack
        if kept is not None and set(numbers) <= set(kept.numbers):
            return kept
        known = () if kept is None else kept.numbers
        wanted = sorted({*numbers, *known})
        if len(wanted) > len(numbers) + SPARE:
            wanted = sorted(numbers)
        found = [self._weights_of(number) for number in wanted]
        weights = [one for one in found if one is not None]
        if len(weights) < len(found):
            return None
        self._stack = Stack(tuple(wanted), [torch.stack(layer) for layer in zip(*weights, strict=True)])
        return self._stack

    def remove(self, number: int) -> None:
        """The adapter goes: nothing of it is kept."""
        if self._stack is not None and number in self._stack.numbers:
            self._stack = None


@dataclass(frozen=True, slots=True)
class AdapterTurns:
    """The packed tokens in the order of a stack's adapters."""

    ends: Tensor
    """[A] int32: where each adapter's tokens end."""
    order: Tensor
    """[T] which packed token stands there."""
    places: Tensor
    """[T] where each packed token stands."""


def adapter_turns(adapter_T: np.ndarray, stack: Stack, device: torch.device) -> AdapterTurns:
    """Every number in `adapter_T` is one of the stack's.

    >>> found = adapter_turns(np.array([7, 4, 7]), Stack((4, 5, 7), []), torch.device("cpu"))
    >>> found.ends.tolist(), found.order.tolist(), found.places.tolist()
    ([1, 1, 3], [1, 0, 2], [1, 0, 2])
    """
    place_T = np.searchsorted(np.array(stack.numbers), adapter_T)
    order = np.argsort(place_T, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    ends = np.bincount(place_T, minlength=len(stack.numbers)).cumsum().astype(np.int32)
    return AdapterTurns(*(torch.from_numpy(array).to(device) for array in (ends, order, places)))


logger = logging.getLogger(__name__)

SCHEMA = (
    "attend(Tensor q, Tensor k, Tensor v, int layer, float? scale, int? window, float? softcap,"
    " Tensor? sinks) -> Tensor"
)
RECORDED = 7
"""Tokens of the pass that is recorded."""


class FlatForward:
    """A recorded forward pass. `linears` are its input weights, by module name, in order."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        head = module.get_output_embeddings()
        self.linears = {
            name: layer
            for name, layer in module.named_modules()
            if isinstance(layer, nn.Linear) and layer is not head
        }
        self.base_weights: list[Tensor] = [layer.weight for layer in self.linears.values()]
        self._attention: Attends | None = None
        self._turns: AdapterTurns | None = None
        # A library of its own for each model: the operation must find this model's attention. It goes with
        # the model, but torch remembers its name for ever.
        name, own = f"art_{secrets.token_hex(8)}", weakref.proxy(self)
        self._library = torch.library.Library(name, "DEF")
        self._library.define(SCHEMA)
        self._library.impl("attend", lambda *call: own._attend(*call), "CompositeExplicitAutograd")
        self._operation = getattr(torch.ops, name).attend
        self._graph = self._record(module, device)
        self._several = self._record_several(module, device)

    @property
    def takes_several(self) -> bool:
        """Returns whether tokens of several adapters can share a pass."""
        return self._several is not None

    def run(
        self,
        ids_T: Tensor,
        positions_T: Tensor,
        wanted: Tensor,
        weights: Sequence[Tensor],
        attention: Attends,
    ) -> Tensor:
        """Logits [len(wanted), V] with the given weights of the linear layers."""
        self._attention, self._turns = attention, None
        return self._graph(ids_T[None], positions_T[None], wanted, *weights)

    def stop_sharing(self) -> None:
        """Adapters do not share a pass."""
        self._several = None

    def run_several(
        self,
        ids_T: Tensor,
        positions_T: Tensor,
        wanted: Tensor,
        stack: Stack,
        turns: AdapterTurns,
        attention: Attends,
    ) -> Tensor:
        """The same with each token's own weights; all is given in the order of the batch."""
        assert self._several is not None
        self._attention, self._turns = attention, turns
        ids, positions = ids_T[turns.order], positions_T[turns.order]
        return self._several(ids[None], positions[None], turns.places[wanted], turns.ends, *stack.weights)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> Tensor:
        """Replaces the attention while the model is recorded."""
        return self._operation(q, k, v, layer, call.scale, call.window, call.softcap, call.sinks)

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: int,
        scale: float | None,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor:
        assert self._attention is not None
        call, turns = LayerCall(scale, window, softcap, sinks), self._turns
        if turns is None:
            return self._attention.attend(layer, q, k, v, call)
        q, k, v = (heads.index_select(1, turns.places) for heads in (q, k, v))
        return self._attention.attend(layer, q, k, v, call).index_select(0, turns.order)

    def _record(self, module: nn.Module, device: torch.device) -> Callable[..., Tensor]:
        def forward(ids: Tensor, positions: Tensor, wanted: Tensor, *weights: Tensor) -> Tensor:
            with _weights_replaced(list(self.linears.values()), weights):
                return self._run_module(module, ids, positions, wanted)

        return self._traced(forward, device, *self.base_weights)

    def _record_several(self, module: nn.Module, device: torch.device) -> Callable[..., Tensor] | None:
        """Returns the recording; None if nothing is merged: elsewhere than on the CPU, and in less than
        float32.
        """
        own = self.base_weights
        if device.type != "cpu" or any(weight.dtype != torch.float32 for weight in own):
            return None

        def forward(ids: Tensor, positions: Tensor, wanted: Tensor, ends: Tensor, *stacks: Tensor) -> Tensor:
            with _products_replaced(list(self.linears.values()), stacks, ends):
                return self._run_module(module, ids, positions, wanted)

        ends = torch.tensor([RECORDED // 2, RECORDED], dtype=torch.int32)
        try:
            return self._traced(forward, device, ends, *as_two_adapters(own))
        except (RuntimeError, AttributeError) as error:
            logger.info("adapters of %s do not share its recording: %s", type(module).__name__, error)
            return None

    def _run_module(self, module: nn.Module, ids: Tensor, positions: Tensor, wanted: Tensor) -> Tensor:
        out = module(
            input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=wanted, art_batch=self
        )
        return out.logits[0]

    def _traced(
        self, forward: Callable[..., Tensor], device: torch.device, *weights: Tensor
    ) -> Callable[..., Tensor]:
        self._attention = PackedAttention([fresh_part(np.array([RECORDED]), device)])
        tokens = torch.arange(RECORDED, device=device)
        inputs = (tokens[None], tokens[None], tokens[1:4], *weights)
        # Not `torch.jit.trace`: what it makes, and the parameters in it, torch keeps until the process ends.
        graph = torch.jit._get_trace_graph(forward, inputs, strict=False)[0]
        return torch._C._create_function_from_graph("forward", graph)


@contextmanager
def _weights_replaced(layers: list[nn.Linear], weights: Sequence[Tensor]) -> Iterator[None]:
    """The layers compute with these weights; a parameter cannot hold the values of a trace, an attribute
    can."""
    own = [layer._parameters.pop("weight") for layer in layers]
    try:
        for layer, weight in zip(layers, weights, strict=True):
            layer.__dict__["weight"] = weight
        yield
    finally:
        for layer, weight in zip(layers, own, strict=True):
            layer.__dict__.pop("weight", None)
            layer._parameters["weight"] = weight


@contextmanager
def _products_replaced(layers: list[nn.Linear], stacks: Sequence[Tensor], ends: Tensor) -> Iterator[None]:
    """The layers multiply each run of tokens by its own weight."""

    def product(stack: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
        y = nn.functional.grouped_mm(x.flatten(0, -2), stack.transpose(1, 2), offs=ends)
        y = y.unflatten(0, x.shape[:-1])
        return y if bias is None else y + bias

    for layer, stack in zip(layers, stacks, strict=True):
        layer.__dict__["forward"] = partial(product, stack, layer.bias)
    try:
        yield
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)


def as_two_adapters(weights: Sequence[Tensor]) -> list[Tensor]:
    """Each weight on itself, without a copy."""
    return [weight.expand(2, -1, -1) for weight in weights]


CHECKED = (1, 2, 7, 40)
"""Numbers of tokens that a recording is checked with."""
CLOSE = 1e-4

Run = Callable[..., Tensor]
"""(ids [T], positions [T], wanted, attention=...) -> logits."""


@torch.inference_mode()
def record_forward(module: nn.Module, device: torch.device, vocab_size: int, run: Run) -> FlatForward | None:
    """The recording of a model, or None when it cannot be recorded. `run` is the model through its
    modules."""
    rotary = str(getattr(module.config, "rope_parameters", ""))
    if "'dynamic'" in rotary or "'longrope'" in rotary:
        return None
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            flat = FlatForward(module, device)
    except (RuntimeError, TypeError, AttributeError) as error:
        logger.info("%s runs through its modules: %s", type(module).__name__, error)
        return None
    decisions = [warning for warning in caught if _is_decision(warning)]
    if decisions:
        logger.info("%s runs through its modules: %s", type(module).__name__, decisions[0].message)
        return None
    base = partial(flat.run, weights=flat.base_weights)
    for tokens in CHECKED:
        difference = _difference(base, run, tokens, vocab_size, device)
        if not difference <= CLOSE:
            logger.info("%s runs through its modules: recorded, it differs by %g", type(module), difference)
            return None
        if flat.takes_several and not _difference(_in_two(flat), run, tokens, vocab_size, device) <= CLOSE:
            logger.info("adapters of %s do not share its recording: it differs", type(module).__name__)
            flat.stop_sharing()
    return flat


def _in_two(flat: FlatForward) -> Run:
    """The base model, as if every other token were another adapter's."""
    stack = Stack((0, 1), as_two_adapters(flat.base_weights))

    def run(ids_T: Tensor, positions_T: Tensor, wanted: Tensor, attention: Attends) -> Tensor:
        order = adapter_turns(np.arange(len(ids_T)) % 2, stack, ids_T.device)
        return flat.run_several(ids_T, positions_T, wanted, stack, order, attention)

    return run


def _is_decision(warning: warnings.WarningMessage) -> bool:
    """Returns whether the model decided in Python by a tensor; torch's own layers so check no more than
    shapes.
    """
    own = str(Path(nn.__file__).parent)
    return issubclass(warning.category, torch.jit.TracerWarning) and not warning.filename.startswith(own)


def _difference(recorded: Run, run: Run, tokens: int, vocab_size: int, device: torch.device) -> float:
    positions = torch.arange(tokens, device=device)
    ids = (positions * 11 + tokens) % vocab_size
    ours, theirs = (
        one(
            ids,
            positions,
            positions[-3:],
            attention=PackedAttention([fresh_part(np.array([tokens]), device)]),
        )
        for one in (recorded, run)
    )
    return float((ours - theirs).abs().max())
