"""Keys and values of conversations: one row each, all layers, grown in buckets up to a budget.

A row never moves while its conversation lives; a finished one stays where it is until its place is needed, so
the next turn goes on in place. G key/value heads, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from art.errors import ConfigurationError
from art.wire.engine import BuiltinOptions

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
        """Give all memory back."""
        self.rows = self.capacity = 0
        self.keys = [self._empty(0, 0, heads, size) for heads, size, _ in self.shapes]
        self.values = [self._empty(0, 0, heads, size) for heads, _, size in self.shapes]

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
