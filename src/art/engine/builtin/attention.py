"""Attention over cache rows, plugged into the ecosystem's model classes through `AttentionInterface`.

All tokens of a step travel through the model as one packed row [1, T]; only attention knows which request
each token belongs to. T tokens, R requests, H query heads, G key/value heads, D head size, L keys looked at,
P padded queries.

A step's tokens are the decoding requests (one token each), then the requests whose prompt is being read
(several tokens each, padded in groups of similar length). Keys and values are written to their rows first,
then read through views. Query heads that share a key/value head are laid side by side as queries, so keys are
never repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from art.engine.builtin.cache import RowCache
from art.errors import ConfigurationError

ATTENTION = "art_rows"
UNSUPPORTED = ("softcap", "s_aux", "position_bias")


class Attends(Protocol):
    """What a forward pass hands to every attention layer."""

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None, window: int | None
    ) -> Tensor:
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
    out = art_batch.attend(int(module.layer_idx), query[0], key[0], value[0], scaling, sliding_window)
    return out[None], None


def visible(position: Tensor, keys: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """Additive mask [..., L]: 0 for keys at or before the query's position (and within the window), else
    -inf."""
    key = torch.arange(keys, device=position.device)
    allowed = key <= position[..., None]
    if window is not None:
        allowed &= key > position[..., None] - window
    return torch.zeros(allowed.shape, dtype=dtype, device=position.device).masked_fill_(
        ~allowed, float("-inf")
    )


@dataclass(slots=True)
class DecodePart:
    """Requests with one new token each, at the front of the packed row."""

    tokens: int
    rows: Tensor
    """[R] cache row of each."""
    position: Tensor
    """[R], or [span] when `span` is set (0 for the idle rows between)."""
    keys: int
    span: int | None
    """Attend over the view of rows 0..span, idle ones included; None copies the rows out first. Whichever is
    less."""
    in_order: bool
    """The requests are exactly rows 0..span in order."""
    masks: dict[int | None, Tensor] = field(default_factory=dict)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None, window: int | None) -> Tensor:
        """q [H, R, D]; k and v [rows, capacity, G, D] of the layer -> [R, H, D]."""
        heads, groups = q.shape[0], k.shape[2]
        q = q.transpose(0, 1)
        if self.span is None:
            k, v = k[:, : self.keys].index_select(0, self.rows), v[:, : self.keys].index_select(0, self.rows)
        else:
            k, v = k[: self.span, : self.keys], v[: self.span, : self.keys]
            if not self.in_order:
                q = q.new_zeros(self.span, *q.shape[1:]).index_copy_(0, self.rows, q)
        if window not in self.masks:
            self.masks[window] = visible(self.position, self.keys, window, q.dtype)[:, None, None]
        out = scaled_dot_product_attention(
            q.reshape(q.shape[0], groups, heads // groups, q.shape[2]),
            k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=self.masks[window],
            scale=scale,
        ).reshape(q.shape[0], heads, v.shape[-1])
        return out.index_select(0, self.rows) if self.span is not None and not self.in_order else out


@dataclass(slots=True)
class PrefillPart:
    """Requests with several new tokens each, padded to the longest of the group."""

    first: int
    tokens: int
    """The group is tokens first .. first + tokens of the packed row."""
    rows: Tensor
    """[R]."""
    position: Tensor
    """[R, P]."""
    pad: Tensor
    """[R * P] which of the group's tokens stands there."""
    unpad: Tensor
    """[tokens] where each of the group's tokens stands."""
    keys: int
    masks: dict[int | None, Tensor] = field(default_factory=dict)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None, window: int | None) -> Tensor:
        """q [H, tokens, D]; k and v [rows, capacity, G, D] of the layer -> [tokens, H, D]."""
        heads, groups = q.shape[0], k.shape[2]
        requests, padded = self.position.shape
        shared = heads // groups
        if window not in self.masks:
            mask = visible(self.position, self.keys, window, q.dtype)[:, None]
            self.masks[window] = mask.repeat(1, 1, shared, 1)
        q = q.transpose(0, 1).index_select(0, self.pad)
        q = q.view(requests, padded, groups, shared, -1).permute(0, 2, 3, 1, 4)
        out = scaled_dot_product_attention(
            q.reshape(requests, groups, shared * padded, -1),
            k[:, : self.keys].index_select(0, self.rows).transpose(1, 2),
            v[:, : self.keys].index_select(0, self.rows).transpose(1, 2),
            attn_mask=self.masks[window],
            scale=scale,
        )
        out = out.view(requests, groups, shared, padded, -1).permute(0, 3, 1, 2, 4)
        return out.reshape(requests * padded, heads, -1).index_select(0, self.unpad)


@dataclass(slots=True)
class StepAttention:
    """Attention of one step: write the new keys and values to their rows, then attend part by part."""

    cache: RowCache
    slot: Tensor
    """[T] row * capacity + position of each packed token."""
    decode: DecodePart | None
    prefill: list[PrefillPart]

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None, window: int | None
    ) -> Tensor:
        self.cache.write(layer, self.slot, k.transpose(0, 1), v.transpose(0, 1))
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        outs = []
        if self.decode is not None:
            outs.append(self.decode.attend(q[:, : self.decode.tokens], keys, values, scale, window))
        for part in self.prefill:
            piece = q[:, part.first : part.first + part.tokens]
            outs.append(part.attend(piece, keys, values, scale, window))
        return outs[0] if len(outs) == 1 else torch.cat(outs)


@dataclass(slots=True)
class FreshAttention:
    """Attention of whole rows without a cache, for scoring: the packed rows are padded and attend
    causally."""

    requests: int
    padded: int
    pad: Tensor
    """[R * P] which packed token stands there; the padding is at the end, where no real token sees it."""
    unpad: Tensor

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None, window: int | None
    ) -> Tensor:
        shared = q.shape[0] // k.shape[0]
        q, k, v = (
            x.index_select(1, self.pad).view(x.shape[0], self.requests, self.padded, -1).transpose(0, 1)
            for x in (q, k, v)
        )
        k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
        mask = None
        if window is not None:
            mask = visible(torch.arange(self.padded, device=q.device), self.padded, window, q.dtype)
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale)
        return (
            out.transpose(1, 2)
            .reshape(self.requests * self.padded, q.shape[1], -1)
            .index_select(0, self.unpad)
        )


@dataclass(slots=True)
class ShapeProbe:
    """Learns at load which layers attend and what they would keep: (key/value heads, key size, value
    size)."""

    shapes: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    calls: int = 0

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None, window: int | None
    ) -> Tensor:
        self.shapes[layer] = (k.shape[0], k.shape[2], v.shape[2])
        self.calls += 1
        return q.new_zeros(q.shape[1], q.shape[0], v.shape[2])
