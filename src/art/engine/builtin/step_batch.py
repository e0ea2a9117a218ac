"""Turn a step's cache rows into tensors: packed ids and positions, the attention's parts, where logits are
wanted.

N rows, T packed tokens. Rows with one pending id decode, rows with more read their prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from art.engine.builtin.attention import AttentionPart, DecodePart, FreshPart, PackedAttention, ReadPart
from art.engine.builtin.cache import RowCache, RowTable

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
