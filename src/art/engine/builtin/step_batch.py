"""The packed row of one step, and attention over cache rows, plugged into the ecosystem's model classes
through `AttentionInterface`.

All tokens of a step travel through the model as one packed row [1, T]; only attention knows which request
each token belongs to. The new keys and values are written to their cache rows first; then each part of the
packed row attends: requests that decode (one pending id), that read on, that begin.

A part is a run of tokens in the packed row. It gets its own new q [H, t, D], k and v [G, t, D], and the
layer's cache rows [rows, capacity, G, D], into which the new keys and values are written already; it gives
[t, H, D]. Query heads that share a key/value head are laid side by side as queries, so cached keys are never
repeated.

T packed tokens, R requests, N rows, H query heads, G key/value heads, D head size, L keys looked at, P padded
queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from art.engine.builtin.cache import RowCache, RowTable
from art.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class LayerCall:
    """The inputs of one attention layer."""

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
        """Returns whether torch's own attention computes it."""
        return self.softcap is None and self.sinks is None


class AttentionPart(Protocol):
    """A run of `tokens` in the packed row."""

    tokens: int

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: LayerCall) -> Tensor: ...


def visible_keys(position: Tensor, keys: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """Additive mask [..., L]: 0 for keys at or before the query's position (and within the window), else
    -inf."""
    key = torch.arange(keys, device=position.device)
    allowed = key <= position[..., None]
    if window is not None:
        allowed &= key > position[..., None] - window
    return torch.zeros(allowed.shape, dtype=dtype, device=position.device).masked_fill_(
        ~allowed, float("-inf")
    )


def attention_weights(
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
        mask = visible_keys(torch.arange(q.shape[-2], device=q.device), k.shape[-2], None, q.dtype)
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
            self.masks[window] = visible_keys(self.position, self.keys, window, q.dtype)[:, None, None]
        out = attention_weights(
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
            mask = visible_keys(self.position, self.keys, window, q.dtype)[:, None]
            self.masks[window] = mask.repeat(1, 1, shared, 1)
        q = q.transpose(0, 1).index_select(0, self.pad)
        q = q.view(requests, padded, groups, shared, -1).permute(0, 2, 3, 1, 4)
        sinks = layer.sinks
        if sinks is not None:
            sinks = sinks.repeat_interleave(padded).view(groups, shared * padded, 1)
        out = attention_weights(
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
            mask = visible_keys(
                torch.arange(self.padded, device=q.device), self.padded, layer.window, q.dtype
            )
        sinks = None if layer.sinks is None else layer.sinks.view(-1, 1, 1)
        out = attention_weights(q, k, v, layer, mask, sinks)
        out = out.transpose(1, 2).reshape(self.requests * self.padded, q.shape[1], -1)
        return out if self.unpad is None else out.index_select(0, self.unpad)

    def _rectangle(self, x: Tensor) -> Tensor:
        """Reshapes [heads, tokens, D] -> [R, heads, P, D]."""
        if self.pad is not None:
            x = x.index_select(1, self.pad)
        return x.reshape(x.shape[0], self.requests, self.padded, -1).transpose(0, 1)


ATTENTION = "art_rows"
UNSUPPORTED = ("position_bias",)


class Attends(Protocol):
    """The attention inputs that a forward pass hands to every layer."""

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

    parts: Sequence[AttentionPart]
    cache: RowCache | None = None
    """None: nothing is kept (scoring)."""
    slot: Tensor | None = None
    """[T] row * capacity + position of each packed token."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> Tensor:
        if self.cache is not None and self.slot is not None:
            self.cache.write(layer, self.slot, k.transpose(0, 1), v.transpose(0, 1))
            keys, values = self.cache.keys[layer], self.cache.values[layer]
            call = LayerCall(call.scale, call.window, call.softcap, call.sinks, keys, values)
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
    calls: dict[int, LayerCall] = field(default_factory=dict)
    count: int = 0

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, call: LayerCall) -> Tensor:
        self.shapes[layer] = (k.shape[0], k.shape[2], v.shape[2])
        self.calls[layer] = call
        self.count += 1
        return q.new_zeros(q.shape[1], q.shape[0], v.shape[2])


GATHER_COST = 1.4
"""Copying a row out of the cache and attending to the copy costs this many times attending in place
(measured)."""
PADDING = 1.5
"""A prefill group may hold this many times its tokens, padding included."""


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One forward pass."""

    rows: np.ndarray
    """[N] cache rows that move on, decoding ones first."""
    counts: np.ndarray
    """[N] tokens that each moves on by."""
    sampled: np.ndarray
    """Rows whose last known id is forwarded, so that the next is sampled, in the order of the logits."""
    adapter_T: np.ndarray
    ids: Tensor
    """[T]."""
    positions: Tensor
    """[T]."""
    wanted: Tensor
    """[len(sampled)] packed tokens whose logits are wanted."""
    attention: PackedAttention


def make_batch(
    table: RowTable, cache: RowCache, max_tokens: int, among: np.ndarray | None = None
) -> StepBatch | None:
    """Returns the batch of the next step (`among` some of the rows): all decoding rows, then prompts up to
    `max_tokens`, each owner's in their order of arrival.
    """
    running = np.flatnonzero(table.running if among is None else table.running & among)
    pending = table.known[running] - table.computed[running]
    decoding = running[pending == 1]
    reading = running[pending > 1]
    reading = reading[np.argsort(table.used[reading], kind="stable")]
    counts = table.known[reading] - table.computed[reading]
    # Even a full house of decoding rows leaves prompts some room, or they would never be read.
    room = max(max_tokens - len(decoding), max_tokens // 8)
    counts = shares(counts, table.owner[reading], room)
    reading, counts = reading[counts > 0], counts[counts > 0]
    # Those that begin first: they attend without the cache. Then by length, to need little padding.
    order = np.lexsort((counts, table.computed[reading] > 0))
    rows = np.concatenate([decoding, reading[order]])
    if not len(rows):
        return None
    counts = np.concatenate([np.ones(len(decoding), np.int64), counts[order]])
    return _pack(table, cache, rows, counts, len(decoding))


def shares(counts: np.ndarray, owner: np.ndarray, room: int) -> np.ndarray:
    """Returns how many of its tokens each row reads: owners share the room evenly, an owner's first row comes
    first.

    Three rows of 900, 50 and 40 tokens, the first of one owner, room 200: [110, 50, 40]. What an owner does
    not need the others have.
    """
    owners, index = np.unique(owner, return_inverse=True)
    wanted = np.bincount(index, weights=counts).astype(np.int64)
    taken = np.zeros_like(counts)
    for left, place in zip(range(len(owners), 0, -1), np.argsort(wanted, kind="stable"), strict=True):
        share = min(int(wanted[place]), room // left)
        room -= share
        own = index == place
        taken[own] = np.clip(share - (counts[own].cumsum() - counts[own]), 0, counts[own])
    return taken


def _pack(table: RowTable, cache: RowCache, rows: np.ndarray, counts: np.ndarray, decoding: int) -> StepBatch:
    ends = counts.cumsum()
    row_T = np.repeat(rows, counts)
    start_N = table.computed[rows]
    position_T = np.arange(ends[-1]) - np.repeat(ends - counts - start_N, counts)
    finishing = start_N + counts == table.known[rows]
    # One transfer to the device for all that has one number per token.
    packed = np.stack([table.ids[row_T, position_T], position_T, row_T * cache.capacity + position_T])
    packed_T = torch.from_numpy(packed).to(cache.device)
    device = cache.device
    parts: list[AttentionPart] = _read_parts(rows[decoding:], counts[decoding:], start_N[decoding:], device)
    if decoding:
        parts.insert(0, _decode_part(rows[:decoding], start_N[:decoding], device))
    return StepBatch(
        rows=rows,
        counts=counts,
        sampled=rows[finishing],
        adapter_T=table.adapter[row_T],
        ids=packed_T[0],
        positions=packed_T[1],
        wanted=torch.from_numpy(ends[finishing] - 1).to(device),
        attention=PackedAttention(parts, cache, packed_T[2]),
    )


def _decode_part(rows: np.ndarray, start: np.ndarray, device: torch.device) -> DecodePart:
    span = int(rows[-1]) + 1
    keys = int(start.max()) + 1
    in_place = span <= GATHER_COST * len(rows)
    position = start
    if in_place and span != len(rows):
        position = np.zeros(span, np.int64)
        position[rows] = start
    return DecodePart(
        tokens=len(rows),
        rows=torch.from_numpy(rows).to(device),
        position=torch.from_numpy(position).to(device),
        keys=keys,
        span=span if in_place else None,
        in_order=span == len(rows),
    )


def _read_parts(
    rows: np.ndarray, counts: np.ndarray, start: np.ndarray, device: torch.device
) -> list[AttentionPart]:
    """Groups of similar length, those that begin apart from those that read on."""
    parts: list[AttentionPart] = []
    begin = 0
    while begin < len(rows):
        end, total = begin + 1, int(counts[begin])
        while end < len(rows) and (start[end] > 0) == (start[begin] > 0):
            total += int(counts[end])
            if counts[end] * (end + 1 - begin) > PADDING * total + 64:
                break
            end += 1
        group = slice(begin, end)
        if start[begin] == 0:
            parts.append(fresh_part(counts[group], device))
        else:
            parts.append(_read_part(rows[group], counts[group], start[group], device))
        begin = end
    return parts


def fresh_part(counts: np.ndarray, device: torch.device) -> FreshPart:
    """A part of whole rows of `counts` tokens."""
    padded = int(counts.max())
    part = FreshPart(tokens=int(counts.sum()), requests=len(counts), padded=padded, pad=None, unpad=None)
    if part.tokens != part.requests * padded:
        part.pad, part.unpad = (torch.from_numpy(index).to(device) for index in padding(counts))
    return part


def _read_part(rows: np.ndarray, counts: np.ndarray, start: np.ndarray, device: torch.device) -> ReadPart:
    pad, unpad = padding(counts)
    column = np.arange(int(counts.max()))
    # Padding looks at the first key only: cheap, and never a row without any key.
    position = np.where(column < counts[:, None], start[:, None] + column, 0)
    return ReadPart(
        tokens=int(counts.sum()),
        rows=torch.from_numpy(rows).to(device),
        position=torch.from_numpy(position).to(device),
        pad=torch.from_numpy(pad).to(device),
        unpad=torch.from_numpy(unpad).to(device),
        keys=int((start + counts).max()),
    )


def padding(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index maps between packed rows of `counts` tokens and the padded rectangle [rows, max(counts)], flat.

    >>> padding(np.array([2, 3]))      # packed 0 1 | 2 3 4, padded 0 1 . | 2 3 4
    (array([0, 1, 0, 2, 3, 4]), array([0, 1, 3, 4, 5]))
    """
    column = np.arange(int(counts.max()))
    real = column < counts[:, None]
    first = counts.cumsum() - counts
    pad = np.where(real, first[:, None] + column, 0).reshape(-1)
    return pad, np.flatnonzero(real)
