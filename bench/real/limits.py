"""What the arithmetic of a model allows on this machine: the time of one product of all its weights with n
rows, packed by oneDNN, which no implementation passes by much.

    decode of n sequences     one such product with n rows a token
    prefill                   the product with 256 rows, for each 256 tokens
    gradient                  twice that: forward, and backward of the activations (a LoRA adds 4 %)
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

ROWS = (8, 64, 256)
TIMES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Seconds of one product of all weights, by its rows."""

    seconds: dict[int, float]

    def decode(self, rows: int, tokens: int) -> float:
        """Seconds of so many tokens of each of `rows` sequences at once; rows is one of `ROWS`."""
        return tokens * self.seconds[rows]

    def prefill(self, tokens: int) -> float:
        return tokens / 256 * self.seconds[256]

    def gradient(self, tokens: int) -> float:
        return 2 * self.prefill(tokens)


def measure_limits(model: Path) -> Limits:
    """The best of a few tries for each number of rows, with all threads that torch takes."""
    with safe_open(model / "model.safetensors", framework="pt") as file:
        weights = [file.get_tensor(name) for name in file.keys()]
    matrices = [one.float() for one in weights if one.ndim == 2]
    return Limits(seconds={rows: _seconds(matrices, rows) for rows in ROWS})


@torch.inference_mode()
def _seconds(matrices: list[torch.Tensor], rows: int) -> float:
    operations = torch.ops.mkldnn
    inputs = {one.shape[1]: torch.randn(rows, one.shape[1]) for one in matrices}
    packed = [(operations._reorder_linear_weight(one, rows), one.shape[1]) for one in matrices]
    found = []
    for _ in range(TIMES + 1):
        begin = time.perf_counter()
        for weight, width in packed:
            operations._linear_pointwise(inputs[width], weight, None, "none", [], "")
        found.append(time.perf_counter() - begin)
    return min(found[1:])
