"""Turn a step's cache rows into tensors: packed ids and positions, the attention's parts, where logits are
wanted.

N rows, T packed tokens. Rows with one pending id decode, rows with more read their prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from art.engine.builtin.attention import DecodePart, PrefillPart, StepAttention
from art.engine.builtin.cache import RowCache
from art.engine.builtin.rows import RowTable

GATHER_COST = 1.4
"""Copying a row out of the cache and attending to the copy costs this many times attending in place
(measured)."""
PADDING = 1.5
"""A prefill group may hold this many times its tokens, padding included."""


@dataclass(frozen=True, slots=True)
class Batch:
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
    attention: StepAttention


def make_batch(table: RowTable, cache: RowCache, max_tokens: int) -> Batch | None:
    """Everything that can move on now: all decoding rows, then prompts in the order of arrival up to
    `max_tokens`."""
    running = np.flatnonzero(table.running)
    pending = table.known[running] - table.computed[running]
    decoding = running[pending == 1]
    reading = running[pending > 1]
    reading = reading[np.argsort(table.used[reading], kind="stable")]
    counts = table.known[reading] - table.computed[reading]
    # Even a full house of decoding rows leaves prompts some room, or they would never be read.
    room = max(max_tokens - len(decoding), max_tokens // 8)
    counts = np.minimum(counts, np.maximum(room - (counts.cumsum() - counts), 0))
    reading, counts = reading[counts > 0], counts[counts > 0]
    order = np.argsort(counts, kind="stable")
    rows = np.concatenate([decoding, reading[order]])
    if not len(rows):
        return None
    return _pack(
        table, cache, rows, np.concatenate([np.ones(len(decoding), np.int64), counts[order]]), len(decoding)
    )


def _pack(table: RowTable, cache: RowCache, rows: np.ndarray, counts: np.ndarray, decoding: int) -> Batch:
    ends = counts.cumsum()
    row_T = np.repeat(rows, counts)
    start_N = table.computed[rows]
    position_T = np.arange(ends[-1]) - np.repeat(ends - counts - start_N, counts)
    finishing = start_N + counts == table.known[rows]
    # One transfer to the device for all that has one number per token.
    packed = np.stack([table.ids[row_T, position_T], position_T, row_T * cache.capacity + position_T])
    packed_T = torch.from_numpy(packed).to(cache.device)
    device = cache.device
    attention = StepAttention(
        cache=cache,
        slot=packed_T[2],
        decode=_decode_part(rows[:decoding], start_N[:decoding], device) if decoding else None,
        prefill=_prefill_parts(rows[decoding:], counts[decoding:], start_N[decoding:], decoding, device),
    )
    return Batch(
        rows=rows,
        counts=counts,
        sampled=rows[finishing],
        adapter_T=table.adapter[row_T],
        ids=packed_T[0],
        positions=packed_T[1],
        wanted=torch.from_numpy(ends[finishing] - 1).to(device),
        attention=attention,
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


def _prefill_parts(
    rows: np.ndarray, counts: np.ndarray, start: np.ndarray, first: int, device: torch.device
) -> list[PrefillPart]:
    """Groups of similar length; rows come sorted by the number of their tokens."""
    parts, begin = [], 0
    while begin < len(rows):
        end = begin + 1
        total = int(counts[begin])
        while end < len(rows) and counts[end] * (end + 1 - begin) <= PADDING * (total + counts[end]) + 64:
            total += int(counts[end])
            end += 1
        parts.append(_prefill_part(rows[begin:end], counts[begin:end], start[begin:end], first, device))
        first += total
        begin = end
    return parts


def _prefill_part(
    rows: np.ndarray, counts: np.ndarray, start: np.ndarray, first: int, device: torch.device
) -> PrefillPart:
    pad, unpad = padding(counts)
    column = np.arange(int(counts.max()))
    # Padding looks at the first key only: cheap, and never a row without any key.
    position = np.where(column < counts[:, None], start[:, None] + column, 0)
    return PrefillPart(
        first=first,
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
