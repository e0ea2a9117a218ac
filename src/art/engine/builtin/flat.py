"""The model's forward pass recorded once as a flat list of tensor operations.

On small models most of a step's time is Python walking through the model's modules: a step of 64 requests on
a 3-layer model took 1.9 ms with modules and 0.8 ms recorded. The model's own code is run once under
`torch.jit.trace`; the weights of its linear layers are inputs of the recording, so that an adapter's merged
weights run through it too. Attention stays ours: the recording calls it as one operation.

A model that decides in Python by the values or number of tokens (some rotary embeddings, some expert routers)
cannot be recorded. Tracing warns of such decisions; then, or when a recording does not compute exactly what
the model does at other lengths, the model runs through its modules as usual.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from art.engine.builtin.attention import Attends, PackedAttention
from art.engine.builtin.batch import fresh_part
from art.engine.builtin.parts import LayerCall

logger = logging.getLogger(__name__)

SCHEMA = (
    "attend(Tensor q, Tensor k, Tensor v, int layer, float? scale, int? window, float? softcap,"
    " Tensor? sinks) -> Tensor"
)
RECORDED = 7
CHECKED = (1, 2, 7, 40)
"""Numbers of tokens that the recording is made and checked with."""
CLOSE = 1e-4

Run = Callable[[Tensor, Tensor, Tensor, Attends], Tensor]
"""(ids [T], positions [T], wanted, attention) -> logits."""


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
        # A library of its own for each model: the operation must find this model's attention.
        self._library = torch.library.Library(f"art_{id(self)}", "DEF")
        self._library.define(SCHEMA)
        self._library.impl("attend", self._attend, "CompositeExplicitAutograd")
        self._operation = getattr(torch.ops, f"art_{id(self)}").attend
        self._graph = self._record(module, device)

    def run(
        self,
        ids_T: Tensor,
        positions_T: Tensor,
        wanted: Tensor,
        weights: Sequence[Tensor],
        attention: Attends,
    ) -> Tensor:
        """Logits [len(wanted), V] with the given weights of the linear layers."""
        self._attention = attention
        return self._graph(ids_T[None], positions_T[None], wanted, *weights)

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
        return self._attention.attend(layer, q, k, v, LayerCall(scale, window, softcap, sinks))

    def _record(self, module: nn.Module, device: torch.device) -> Callable[..., Tensor]:
        def forward(ids: Tensor, positions: Tensor, wanted: Tensor, *weights: Tensor) -> Tensor:
            with _weights_replaced(list(self.linears.values()), weights):
                out = module(
                    input_ids=ids,
                    position_ids=positions,
                    use_cache=False,
                    logits_to_keep=wanted,
                    art_batch=self,
                )
            return out.logits[0]

        self._attention = PackedAttention([fresh_part(np.array([RECORDED]), device)])
        tokens = torch.arange(RECORDED, device=device)
        inputs = (tokens[None], tokens[None], tokens[1:4], *self.base_weights)
        return torch.jit.trace(forward, inputs, check_trace=False, strict=False)


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


@torch.inference_mode()
def record(module: nn.Module, device: torch.device, vocab_size: int, run: Run) -> FlatForward | None:
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
    for tokens in CHECKED:
        difference = _difference(flat, run, tokens, vocab_size, device)
        if not difference <= CLOSE:
            logger.info("%s runs through its modules: recorded, it differs by %g", type(module), difference)
            return None
    return flat


def _is_decision(warning: warnings.WarningMessage) -> bool:
    """Whether the model decided in Python by a tensor; torch's own layers so check no more than shapes."""
    own = str(Path(nn.__file__).parent)
    return issubclass(warning.category, torch.jit.TracerWarning) and not warning.filename.startswith(own)


def _difference(flat: FlatForward, run: Run, tokens: int, vocab_size: int, device: torch.device) -> float:
    positions = torch.arange(tokens, device=device)
    ids = (positions * 11 + tokens) % vocab_size

    def attention() -> Any:
        return PackedAttention([fresh_part(np.array([tokens]), device)])

    recorded = flat.run(ids, positions, positions[-3:], flat.base_weights, attention())
    return float((recorded - run(ids, positions, positions[-3:], attention())).abs().max())
