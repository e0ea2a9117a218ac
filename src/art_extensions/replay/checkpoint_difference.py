"""Two checkpoints of one step, compared to the bit, and by how far the weights and their update differ.

Errors are relative, in the Euclidean norm over all weights: `|again - recorded| / |recorded|`, and of the
update `|again - recorded| / |recorded - before|`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from art.training.checkpoint import read_tensors
from art.wire.models import STATE_FILE

SUFFIX = ".safetensors"
WEIGHTS = ("adapter_model", "model")
"""The beginnings of the names of the files with what is trained."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstDifference:
    """The first tensor that differs, in the order of files and names."""

    file: str
    tensor: str
    error: float | None
    """Relative; None: one side lacks it, or it has another shape."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointDifference:
    """The difference between a recorded checkpoint and that of a replay."""

    tensors: int
    differing: int
    first: FirstDifference | None
    same_state: bool
    """Whether the RNG and the trainer's other numbers are the same."""
    weights_error: float
    update_error: float
    update_cosine: float
    """The difference between the recorded update and the new one."""

    @property
    def bit_equal(self) -> bool:
        return not self.differing and self.same_state


def compare_checkpoints(before: Path, recorded: Path, again: Path) -> CheckpointDifference:
    """Compares all tensors of two folders; `before` is the checkpoint that both began with.

    Raises CheckpointError for a file that cannot be read.
    """
    tensors, differing, first = 0, 0, None
    for file in sorted({*_files(recorded), *_files(again)}):
        sides = [_read(folder / file) for folder in (recorded, again)]
        for name in sorted({*sides[0], *sides[1]}):
            tensors += 1
            if not _same_bits(sides[0].get(name), sides[1].get(name)):
                differing += 1
                error = _error_of(sides[0].get(name), sides[1].get(name))
                first = first or FirstDifference(file=file, tensor=name, error=error)
    square = {"gap": 0.0, "weights": 0.0, "update": 0.0, "other": 0.0, "product": 0.0}
    for start, there, new in _weights(before, recorded, again):
        update, other = there - start, new - start
        square["gap"] += float((new - there).square().sum())
        square["weights"] += float(there.square().sum())
        square["update"] += float(update.square().sum())
        square["other"] += float(other.square().sum())
        square["product"] += float((update * other).sum())
    return CheckpointDifference(
        tensors=tensors,
        differing=differing,
        first=first,
        same_state=(recorded / STATE_FILE).read_bytes() == (again / STATE_FILE).read_bytes(),
        weights_error=_ratio(square["gap"], square["weights"]) ** 0.5,
        update_error=_ratio(square["gap"], square["update"]) ** 0.5,
        update_cosine=_ratio(square["product"], (square["update"] * square["other"]) ** 0.5),
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0 if not part else float("inf")


def _files(folder: Path) -> list[str]:
    return [path.name for path in folder.glob(f"*{SUFFIX}")]


def _read(path: Path) -> dict[str, torch.Tensor]:
    return read_tensors(path) if path.exists() else {}


def _same_bits(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    bits = [side.contiguous().reshape(-1).view(torch.uint8) for side in (one, other)]
    return bool(torch.equal(*bits))


def _error_of(one: torch.Tensor | None, other: torch.Tensor | None) -> float | None:
    if one is None or other is None or one.shape != other.shape:
        return None
    gap = float((other.double() - one.double()).norm())
    return _ratio(gap, float(one.double().norm()))


def _weights(
    before: Path, recorded: Path, again: Path
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yields each trained tensor of the three folders, in float64."""
    names = [name for name in _files(recorded) if name.startswith(WEIGHTS)]
    indexed = [_places(folder, names) for folder in (before, recorded, again)]
    for name in sorted(set(indexed[0]) & set(indexed[1]) & set(indexed[2])):
        start, there, new = (_tensor(places[name], name) for places in indexed)
        if start.shape == there.shape == new.shape and there.is_floating_point():
            yield start.double(), there.double(), new.double()


def _places(folder: Path, names: list[str]) -> dict[str, Path]:
    """Tensor -> its file."""
    found = {}
    for path in (folder / name for name in names if (folder / name).exists()):
        with safe_open(str(path), "pt") as file:
            found.update(dict.fromkeys(file.keys(), path))
    return found


def _tensor(path: Path, name: str) -> torch.Tensor:
    with safe_open(str(path), "pt") as file:
        return file.get_tensor(name)
