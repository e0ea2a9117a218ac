"""The model's forward pass recorded once as a flat list of tensor operations.

On small models most of a step's time is Python walking through the model's modules: a step of 64 requests on
a 3-layer model took 1.9 ms with modules and 0.8 ms recorded. The model's own code is run once under
`torch.jit.trace`; the weights of its linear layers are inputs of the recording, so that an adapter's merged
weights run through it too. Attention stays ours: the recording calls it as one operation. A second recording
takes the weights of several adapters, and the tokens in their order (see `stacks.py`).
"""

from __future__ import annotations

import logging
import secrets
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from art.engine.builtin.attention import Attends, PackedAttention
from art.engine.builtin.batch import fresh_part
from art.engine.builtin.parts import LayerCall
from art.engine.builtin.stacks import AdapterTurns, Stack

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
        """Whether tokens of several adapters can share a pass."""
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

    def alone(self) -> None:
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
        """What the model meets as its attention while it is recorded."""
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
                return self._through(module, ids, positions, wanted)

        return self._traced(forward, device, *self.base_weights)

    def _record_several(self, module: nn.Module, device: torch.device) -> Callable[..., Tensor] | None:
        """None where nothing is kept merged: elsewhere than on the CPU, and in less than float32."""
        own = self.base_weights
        if device.type != "cpu" or any(weight.dtype != torch.float32 for weight in own):
            return None

        def forward(ids: Tensor, positions: Tensor, wanted: Tensor, ends: Tensor, *stacks: Tensor) -> Tensor:
            with _products_replaced(list(self.linears.values()), stacks, ends):
                return self._through(module, ids, positions, wanted)

        ends = torch.tensor([RECORDED // 2, RECORDED], dtype=torch.int32)
        try:
            return self._traced(forward, device, ends, *twice(own))
        except (RuntimeError, AttributeError) as error:
            logger.info("adapters of %s do not share its recording: %s", type(module).__name__, error)
            return None

    def _through(self, module: nn.Module, ids: Tensor, positions: Tensor, wanted: Tensor) -> Tensor:
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


def twice(weights: Sequence[Tensor]) -> list[Tensor]:
    """Each weight on itself, without a copy."""
    return [weight.expand(2, -1, -1) for weight in weights]
