"""Attention over cache rows, plugged into the ecosystem's model classes through `AttentionInterface`.

All tokens of a step travel through the model as one packed row [1, T]; only attention knows which request
each token belongs to. T tokens, R requests, H query heads, G key/value heads, D head size, L keys looked at,
P padded queries.

The new keys and values are written to their rows first; then each part of the packed row attends (see
`parts.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from art.engine.builtin.cache import RowCache
from art.engine.builtin.parts import LayerCall, Part
from art.errors import ConfigurationError

ATTENTION = "art_rows"
UNSUPPORTED = ("position_bias",)


class Attends(Protocol):
    """What a forward pass hands to every attention layer."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> Tensor:
        """q [H, T, D], k and v [G, T, D] of the packed tokens -> [T, H, D]."""
        ...


def rows_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    art_batch: Attends | None = None,
    **extra: Any,
) -> tuple[Tensor, None]:
    """The function that `transformers` calls in every layer."""
    for name in UNSUPPORTED:
        if extra.get(name) is not None:
            raise ConfigurationError(f"the builtin engine cannot run models whose attention uses {name!r}")
    if art_batch is None:
        raise ConfigurationError(
            f"{type(module).__name__} does not hand keyword arguments to its attention function; "
            "the builtin engine cannot run it"
        )
    call = LayerCall(scaling, sliding_window, softcap, s_aux)
    out = art_batch.attend(int(module.layer_idx), query[0], key[0], value[0], call)
    return out[None], None


@dataclass(slots=True)
class PackedAttention:
    """Attention of one forward pass over the parts of the packed row, in order."""

    parts: Sequence[Part]
    cache: RowCache | None = None
    """None: nothing is kept (scoring)."""
    slot: Tensor | None = None
    """[T] row * capacity + position of each packed token."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> Tensor:
        if self.cache is not None and self.slot is not None:
            self.cache.write(layer, self.slot, k.transpose(0, 1), v.transpose(0, 1))
            call = replace(call, keys=self.cache.keys[layer], values=self.cache.values[layer])
        if len(self.parts) == 1:
            return self.parts[0].attend(q, k, v, call)
        outs, first = [], 0
        for part in self.parts:
            run = slice(first, first + part.tokens)
            outs.append(part.attend(q[:, run], k[:, run], v[:, run], call))
            first += part.tokens
        return torch.cat(outs)


@dataclass(slots=True)
class ShapeProbe:
    """Learns at load which layers attend and what they would keep: (key/value heads, key size, value
    size)."""

    shapes: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    windows: dict[int, int | None] = field(default_factory=dict)
    calls: int = 0

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> Tensor:
        self.shapes[layer] = (k.shape[0], k.shape[2], v.shape[2])
        self.windows[layer] = call.window
        self.calls += 1
        return q.new_zeros(q.shape[1], q.shape[0], v.shape[2])
