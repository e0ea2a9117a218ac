"""How the tokens of a step attend, part by part: requests that decode, that read on, that begin.

R requests, H query heads, G key/value heads, D head size, L keys looked at, P padded queries. A part is a run
of tokens in the packed row. It gets its own new q [H, t, D], k and v [G, t, D], and the layer's cache rows
[rows, capacity, G, D], into which the new keys and values are written already; it gives [t, H, D]. Query
heads that share a key/value head are laid side by side as queries, so cached keys are never repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True, slots=True)
class LayerCall:
    """What one attention layer asks for."""

    scale: float | None
    window: int | None
    """Sliding window in tokens."""
    softcap: float | None = None
    """Scores are `softcap * tanh(score / softcap)` (Gemma 2)."""
    sinks: Tensor | None = None
    """[H] one more score per head, which takes its share of the softmax and has no value (GPT-OSS)."""
    keys: Tensor | None = None
    """[rows, capacity, G, D] of the layer; None when nothing is cached (scoring)."""
    values: Tensor | None = None

    @property
    def plain(self) -> bool:
        """Whether torch's own attention computes it."""
        return self.softcap is None and self.sinks is None


class Part(Protocol):
    """A run of `tokens` in the packed row."""

    tokens: int

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: LayerCall) -> Tensor: ...


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


def weigh(
    q: Tensor, k: Tensor, v: Tensor, layer: LayerCall, mask: Tensor | None, sinks: Tensor | None
) -> Tensor:
    """Values weighed by the softmax of the scores; without a mask causally.

    q [..., Q, D], k and v [..., L, D], mask [..., Q, L], `sinks` broadcasts to [..., Q, 1].
    """
    if layer.plain:
        return scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=layer.scale
        )
    if mask is None:
        mask = visible(torch.arange(q.shape[-2], device=q.device), k.shape[-2], None, q.dtype)
    scale = q.shape[-1] ** -0.5 if layer.scale is None else layer.scale
    scores = (q @ k.transpose(-1, -2)).float() * scale
    if layer.softcap is not None:
        scores = torch.tanh(scores / layer.softcap) * layer.softcap
    scores = scores + mask
    if sinks is not None:
        scores = torch.cat([scores, sinks.float().expand(*scores.shape[:-1], 1)], -1)
    return torch.softmax(scores, -1)[..., : k.shape[-2]].to(v.dtype) @ v


@dataclass(slots=True)
class DecodePart:
    """Requests with one new token each."""

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

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: LayerCall) -> Tensor:
        k, v, window = layer.keys, layer.values, layer.window
        assert k is not None and v is not None
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
        out = weigh(
            q.reshape(q.shape[0], groups, heads // groups, q.shape[2]),
            k.transpose(1, 2),
            v.transpose(1, 2),
            layer,
            self.masks[window],
            None if layer.sinks is None else layer.sinks.view(groups, heads // groups, 1),
        ).reshape(q.shape[0], heads, v.shape[-1])
        return out.index_select(0, self.rows) if self.span is not None and not self.in_order else out


@dataclass(slots=True)
class ReadPart:
    """Requests with several new tokens each, after others that are cached; padded to the longest of the
    group."""

    tokens: int
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

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: LayerCall) -> Tensor:
        k, v, window = layer.keys, layer.values, layer.window
        assert k is not None and v is not None
        heads, groups = q.shape[0], k.shape[2]
        requests, padded = self.position.shape
        shared = heads // groups
        if window not in self.masks:
            mask = visible(self.position, self.keys, window, q.dtype)[:, None]
            self.masks[window] = mask.repeat(1, 1, shared, 1)
        q = q.transpose(0, 1).index_select(0, self.pad)
        q = q.view(requests, padded, groups, shared, -1).permute(0, 2, 3, 1, 4)
        sinks = layer.sinks
        if sinks is not None:
            sinks = sinks.repeat_interleave(padded).view(groups, shared * padded, 1)
        out = weigh(
            q.reshape(requests, groups, shared * padded, -1),
            k[:, : self.keys].index_select(0, self.rows).transpose(1, 2),
            v[:, : self.keys].index_select(0, self.rows).transpose(1, 2),
            layer,
            self.masks[window],
            sinks,
        )
        out = out.view(requests, groups, shared, padded, -1).permute(0, 3, 1, 2, 4)
        return out.reshape(requests * padded, heads, -1).index_select(0, self.unpad)


@dataclass(slots=True)
class FreshPart:
    """Requests that begin: all their keys are among the new tokens, so they attend causally without a
    mask."""

    tokens: int
    requests: int
    padded: int
    pad: Tensor | None
    """[R * P] which of the part's tokens stands there; the padding is at the end, where no real token sees
    it. None when all requests are of one length."""
    unpad: Tensor | None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: LayerCall) -> Tensor:
        shared = q.shape[0] // k.shape[0]
        q, k, v = self._rectangle(q), self._rectangle(k), self._rectangle(v)
        k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
        mask = None
        if layer.window is not None and layer.window < self.padded:
            mask = visible(torch.arange(self.padded, device=q.device), self.padded, layer.window, q.dtype)
        sinks = None if layer.sinks is None else layer.sinks.view(-1, 1, 1)
        out = weigh(q, k, v, layer, mask, sinks)
        out = out.transpose(1, 2).reshape(self.requests * self.padded, q.shape[1], -1)
        return out if self.unpad is None else out.index_select(0, self.unpad)

    def _rectangle(self, x: Tensor) -> Tensor:
        """[heads, tokens, D] -> [R, heads, P, D]."""
        if self.pad is not None:
            x = x.index_select(1, self.pad)
        return x.reshape(x.shape[0], self.requests, self.padded, -1).transpose(0, 1)
