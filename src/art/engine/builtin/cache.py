"""The cache of conversations: their keys and values, and what each cache row holds.

`RowCache` has one row for each conversation, all layers, grown in buckets up to a budget. A row never moves
while its conversation lives; a finished one stays where it is until its place is needed, so the next turn
goes on in place. `RowTable` knows the ids of each row, how many of them are computed and under which adapter,
and finds prefixes to reuse.

Worked example: row 0 holds ids [5, 6, 7, 8] with 3 computed (the last was only sampled). The prompt [5, 6, 7,
8, 9] under the same adapter shares 4 ids with it, 3 of them usable: two ids are left to forward.

G key/value heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from art.errors import ConfigurationError
from art.wire.engine import BuiltinOptions

EMPTY = -1
HEAD = 8


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The best row for a prompt. `ready` tokens can be used now, `coming` after the running prefills."""

    row: int
    ready: int
    coming: int


class RowTable:
    """The same row numbers as `RowCache`, kept as arrays so that a step reads them without a loop."""

    def __init__(self, rows: int) -> None:
        self.ids = np.zeros((rows, 0), np.int64)
        self.known = np.zeros(rows, np.int64)
        """ids that are known"""
        self.computed = np.zeros(rows, np.int64)
        """ids whose keys and values are in the cache"""
        self.adapter = np.full(rows, EMPTY, np.int64)
        """number of the adapter that computed them, EMPTY for a free row"""
        self.head = np.zeros(rows, np.int64)
        """hash of the first ids, so that a prompt is compared only with rows that begin like it"""
        self.owner = np.zeros(rows, np.int64)
        """number of the running request's owner"""
        self.running = np.zeros(rows, bool)
        self.used = np.zeros(rows, np.int64)
        """when it was last taken; the oldest idle row goes first"""
        self.clock = 0

    def widen(self, capacity: int) -> None:
        wider = np.zeros((self.ids.shape[0], capacity), np.int64)
        width = min(capacity, self.ids.shape[1])
        wider[:, :width] = self.ids[:, :width]
        self.ids = wider

    def begin_request(self, row: int, adapter: int, ids: np.ndarray, computed: int, owner: int = 0) -> None:
        """A request begins in this row; the first `computed` ids are there already."""
        self.clock += 1
        self.owner[row] = owner
        self.ids[row, : len(ids)] = ids
        self.known[row], self.computed[row] = len(ids), computed
        self.adapter[row], self.running[row], self.used[row] = adapter, True, self.clock
        self.head[row] = _head(ids)

    def release(self, row: int) -> None:
        """The request ended; what is computed stays for the next turn."""
        self.clock += 1
        self.running[row], self.used[row] = False, self.clock
        self.known[row] = self.computed[row]
        if self.computed[row] == 0:
            self.adapter[row] = EMPTY

    def forget_adapter(self, adapter: int) -> None:
        self.adapter[self.adapter == adapter] = EMPTY

    def clear(self) -> None:
        self.adapter[:] = EMPTY
        self.running[:] = False

    def reorder(self, keep: list[int]) -> None:
        """Row `keep[i]` becomes row i; the others are free."""
        arrays = (
            self.ids,
            self.known,
            self.computed,
            self.adapter,
            self.head,
            self.owner,
            self.running,
            self.used,
        )
        for array in arrays:
            array[: len(keep)] = array[keep]
        self.adapter[len(keep) :] = EMPTY
        self.running[len(keep) :] = False

    def match(self, adapter: int, ids: np.ndarray) -> PrefixMatch:
        """Longest common prefix with any row of the adapter, running rows included; less than HEAD ids is
        none."""
        rows = np.flatnonzero((self.head == _head(ids)) & (self.adapter == adapter))
        width = min(len(ids), self.ids.shape[1])
        if not len(rows) or width < HEAD:
            return PrefixMatch(EMPTY, 0, 0)
        same = self.ids[rows, :width] == ids[:width]
        common = np.where(same.all(1), width, same.argmin(1))
        common = np.minimum(common, self.known[rows])
        ready = np.minimum(common, self.computed[rows])
        # Among equals an idle row that holds nothing else: it can be gone on with in place.
        extendable = ~self.running[rows] & (self.computed[rows] == ready)
        best = int((ready * 2 + extendable).argmax())
        return PrefixMatch(int(rows[best]), int(ready[best]), int(common.max()))

    def free_row(self, rows: int) -> int:
        """The lowest free row below `rows`, or EMPTY."""
        free = np.flatnonzero(self.adapter[:rows] == EMPTY)
        return int(free[0]) if len(free) else EMPTY

    def oldest_idle(self, rows: int, besides: int) -> int:
        """The idle row that was used longest ago, or EMPTY."""
        idle = np.flatnonzero(~self.running[:rows])
        idle = idle[idle != besides]
        return int(idle[self.used[idle].argmin()]) if len(idle) else EMPTY

    def newest(self, count: int) -> list[int]:
        """Running rows, then idle ones by last use: at most `count` that are worth keeping."""
        filled = np.flatnonzero(self.adapter != EMPTY)
        order = np.lexsort((-self.used[filled], ~self.running[filled]))
        return [int(row) for row in filled[order][:count]]


def _head(ids: np.ndarray) -> int:
    return hash(ids[:HEAD].tobytes())


BUCKET = 64
MIB = 1 << 20


def bucket(tokens: int) -> int:
    """Round up to whole buckets."""
    return -(-tokens // BUCKET) * BUCKET


class RowCache:
    """Per layer keys [rows, capacity, G, D] and values alike."""

    def __init__(
        self, shapes: list[tuple[int, int, int]], *, budget: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shapes = shapes
        self.budget = budget
        """rows * capacity never exceeds this many tokens."""
        self.dtype = dtype
        self.device = device
        self.rows = 0
        self.capacity = 0
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.free()

    def free(self) -> None:
        """Frees all memory."""
        self.rows = self.capacity = 0
        self.keys = [self._empty(0, 0, heads, size) for heads, size, _ in self.shapes]
        self.values = [self._empty(0, 0, heads, size) for heads, _, size in self.shapes]
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # the trainer is another process

    def _empty(self, rows: int, capacity: int, heads: int, size: int) -> Tensor:
        # Zeros, not garbage: a masked key still multiplies its value, and 0 * nan is nan.
        return torch.zeros(rows, capacity, heads, size, dtype=self.dtype, device=self.device)

    def resize(self, keep: list[int], rows: int, capacity: int) -> None:
        """Reallocate; row `keep[i]` becomes row i. One layer at a time, so the peak is one layer above the
        result."""
        index = torch.tensor(keep, dtype=torch.long, device=self.device)
        length = min(self.capacity, capacity)
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                new = self._empty(rows, capacity, old.shape[2], old.shape[3])
                if keep:
                    new[: len(keep), :length] = old[:, :length].index_select(0, index)
                tensors[layer] = new
        self.rows, self.capacity = rows, capacity

    def write(self, layer: int, slot: Tensor, k: Tensor, v: Tensor) -> None:
        """k and v [T, G, D] go to `slot` [T] = row * capacity + position."""
        self.keys[layer].flatten(0, 1).index_copy_(0, slot, k)
        self.values[layer].flatten(0, 1).index_copy_(0, slot, v)

    def copy(self, source: list[int], target: list[int], tokens: int) -> None:
        """Copy the first `tokens` tokens of each source row to its target row."""
        from_rows = torch.tensor(source, dtype=torch.long, device=self.device)
        to_rows = torch.tensor(target, dtype=torch.long, device=self.device)
        for tensors in (self.keys, self.values):
            for tensor in tensors:
                tensor[:, :tokens].index_copy_(0, to_rows, tensor[:, :tokens].index_select(0, from_rows))


def bytes_per_token(shapes: list[tuple[int, int, int]], dtype: torch.dtype) -> int:
    return sum(heads * (key + value) for heads, key, value in shapes) * dtype.itemsize


def cache_budget(
    options: BuiltinOptions, shapes: list[tuple[int, int, int]], dtype: torch.dtype, device: torch.device
) -> int:
    """Tokens that the cache may hold. Raises: ConfigurationError when they are too few for two rows."""
    token_bytes = bytes_per_token(shapes, dtype)
    budget = _cache_bytes(options, device) // token_bytes
    if budget < 2 * BUCKET:
        raise ConfigurationError(
            f"cache_mb={options.cache_mb!r} holds {budget} tokens of {token_bytes} bytes; "
            f"at least {2 * BUCKET} are needed"
        )
    return budget


def _cache_bytes(options: BuiltinOptions, device: torch.device) -> int:
    if options.cache_mb is not None:
        return options.cache_mb * MIB
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] // 2)
    return 512 * MIB
