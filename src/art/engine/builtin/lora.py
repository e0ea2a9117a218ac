"""LoRA adapters, many live at once over one base model, and the model's forward pass, recorded once as a flat
list of tensor operations that takes their weights.

A target `nn.Linear` is replaced by an `AdapterLinear` when the first adapter touches it. The base product is
computed once for all tokens, each adapter's low-rank product for its own tokens only. Where the model is
small, merged weights are used instead: one product a token, as fast as the base model; and where its forward
pass is recorded, adapters that share a step do so in one grouped product a layer (`Stacks`).

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
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from art.engine.builtin.peft_folder import PeftAdapter
from art.engine.builtin.quantized import is_quantized
from art.engine.builtin.step_batch import Attends, LayerCall, PackedAttention, fresh_part
from art.errors import CheckpointError

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
    if any(is_quantized(layer) for layer in module.modules()):
        return None  # a recording takes the weights as they are, these are unpacked in each pass
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


BASE = 0
"""The number of the base model, which has no adapter."""


@dataclass(slots=True)
class Routing:
    """The adapter of each packed token of the running step. Shared by all layers, set before each forward."""

    single: int | None = BASE
    groups: list[tuple[int, Tensor]] = field(default_factory=list)
    """When there are several: (adapter, indices of its tokens)."""

    def set(self, adapter_T: np.ndarray, device: torch.device) -> None:
        first = int(adapter_T[0])
        self.single = first if bool((adapter_T == first).all()) else None
        self.groups = []
        if self.single is None:
            for adapter in np.unique(adapter_T):
                index = torch.from_numpy(np.flatnonzero(adapter_T == adapter)).to(device)
                self.groups.append((int(adapter), index))


@dataclass(slots=True)
class LoraWeights:
    """One adapter's part in one layer: a [r, in], b [out, r] with the scale in it."""

    a: Tensor
    b: Tensor
    merged: Tensor | None

    def delta(self, x: Tensor) -> Tensor:
        return linear(linear(x, self.a), self.b)


class AdapterLinear(nn.Module):
    """A linear layer with the adapters that touch it, by number."""

    def __init__(self, base: nn.Linear, routing: Routing) -> None:
        super().__init__()
        self.base = base
        self.routing = routing
        self.adapters: dict[int, LoraWeights] = {}

    @property
    def weight(self) -> Tensor:
        """The base layer's weight, because some models read its device or type."""
        return self.base.weight

    @property
    def bias(self) -> Tensor | None:
        return self.base.bias

    def forward(self, x: Tensor) -> Tensor:
        single = self.routing.single
        if single is None:
            return self._forward_mixed(x)
        adapter = self.adapters.get(single)
        if adapter is None:
            return self.base(x)
        if adapter.merged is not None:
            return linear(x, adapter.merged, self.base.bias)
        return self.base(x).add_(adapter.delta(x))

    def _forward_mixed(self, x: Tensor) -> Tensor:
        kept = [self._whole_weight(number) for number, _ in self.routing.groups]
        weights = [weight for weight in kept if weight is not None]
        if len(weights) == len(kept):
            return self._side_by_side(x, weights)
        out = self.base(x)
        for number, index in self.routing.groups:
            adapter = self.adapters.get(number)
            if adapter is not None:
                out.index_add_(1, index, adapter.delta(x.index_select(1, index)))
        return out

    def _whole_weight(self, number: int) -> Tensor | None:
        """The one weight that is an adapter's product; None where it is not kept merged."""
        adapter = self.adapters.get(number)
        if adapter is not None:
            return adapter.merged
        return None if is_quantized(self.base) else self.base.weight

    def _side_by_side(self, x: Tensor, weights: list[Tensor]) -> Tensor:
        """Each adapter's tokens through its merged weight: one product a token, as when it runs alone."""
        out = x.new_empty((*x.shape[:-1], self.base.out_features))
        for (_, index), weight in zip(self.routing.groups, weights, strict=True):
            out.index_copy_(1, index, linear(x.index_select(1, index), weight, self.base.bias))
        return out


class AdapterLayers:
    """The linear layers of one model that adapters have touched."""

    def __init__(
        self, model: nn.Module, routing: Routing, merge_bytes: int, flat: FlatForward | None
    ) -> None:
        """`flat` is the recorded forward pass of the model, if it has one."""
        self.model = model
        self.routing = routing
        self.merge_bytes = merge_bytes
        self.flat = flat
        self._dtype = model.get_input_embeddings().weight.dtype
        """In which layers compute; a quantized weight has another."""
        self.layers: dict[str, AdapterLinear] = {}
        self._flat_weights: dict[int, list[Tensor] | None] = {}
        self._stacks = Stacks(self.flat_weights)

    def add(self, number: int, adapter: PeftAdapter) -> None:
        """Raises: CheckpointError when the adapter does not fit the model; then nothing was changed."""
        bases = {name: self._base(name, adapter) for name in adapter.weights}
        merge = self._merges(bases)
        for name, base in bases.items():
            a, b = adapter.weights[name]
            scaled = b.float() * adapter.scale(a.shape[0])
            merged = None
            if merge:
                merged = base.weight + (scaled @ a.float()).to(base.weight)
            layer = self.layers.get(name) or self._wrap(name, base)
            where = {"device": base.weight.device, "dtype": self._dtype}
            layer.adapters[number] = LoraWeights(a.to(**where), scaled.to(**where), merged)

    def flat_weights(self, number: int) -> list[Tensor] | None:
        """The weights with which the recorded forward pass is this adapter's; None when it is not merged."""
        if self.flat is None:
            return None
        if number == BASE:
            return self.flat.base_weights
        if number not in self._flat_weights:
            self._flat_weights[number] = self._merged_weights(self.flat, number)
        return self._flat_weights[number]

    def stack(self, numbers: Sequence[int]) -> Stack | None:
        """Returns the inputs of the recorded forward pass of several adapters; None if it cannot have them.

        A stack copies all linear layers once for each adapter, also those that few or none of them touch.
        """
        if self.flat is None or not self.flat.takes_several:
            return None
        if sum(weight.nbytes for weight in self.flat.base_weights) > self.merge_bytes:
            return None
        return self._stacks.stack_of(numbers)

    def _merged_weights(self, flat: FlatForward, number: int) -> list[Tensor] | None:
        weights = dict(zip(flat.linears, flat.base_weights, strict=True))
        for name, layer in self.layers.items():
            adapter = layer.adapters.get(number)
            if adapter is not None:
                if adapter.merged is None:
                    return None
                weights[name] = adapter.merged
        return list(weights.values())

    def remove(self, number: int) -> None:
        self._flat_weights.pop(number, None)
        self._stacks.remove(number)
        for layer in self.layers.values():
            layer.adapters.pop(number, None)

    def _merges(self, bases: dict[str, nn.Linear]) -> bool:
        """Returns whether weights are merged: only float32, because a merged bfloat16 weight would lose what
        the adapter has learned.
        """
        size = sum(base.weight.nbytes for base in bases.values())
        return size <= self.merge_bytes and all(base.weight.dtype == torch.float32 for base in bases.values())

    def _base(self, name: str, adapter: PeftAdapter) -> nn.Linear:
        if name in self.layers:
            base: nn.Module = self.layers[name].base
        else:
            try:
                base = self.model.get_submodule(name)
            except AttributeError as error:
                raise CheckpointError(
                    f"adapter {str(adapter.path)!r} has weights for {name!r}, which the base model does not "
                    "have: it was trained on another model"
                ) from error
        if not isinstance(base, nn.Linear):
            raise CheckpointError(
                f"adapter {str(adapter.path)!r} targets {name!r}, a {type(base).__name__}; "
                "only Linear layers work"
            )
        if base is self.model.get_output_embeddings():
            raise CheckpointError(
                f"adapter {str(adapter.path)!r} targets the output layer {name!r}: not supported"
            )
        a, b = adapter.weights[name]
        if a.shape[1] != base.in_features or b.shape[0] != base.out_features or a.shape[0] != b.shape[1]:
            raise CheckpointError(
                f"adapter {str(adapter.path)!r}, layer {name!r}: A {tuple(a.shape)} and B {tuple(b.shape)} "
                f"do not fit a layer from {base.in_features} to {base.out_features}: "
                "it was trained on another model"
            )
        return base

    def _wrap(self, name: str, base: nn.Linear) -> AdapterLinear:
        parent, _, leaf = name.rpartition(".")
        layer = AdapterLinear(base, self.routing)
        setattr(self.model.get_submodule(parent), leaf, layer)
        self.layers[name] = layer
        return layer
