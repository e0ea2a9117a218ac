"""Named tensors in a file, as checkpoints keep them: read whole and held against what is expected."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from art.errors import CheckpointError


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file. Raises CheckpointError when it is unreadable."""
    try:
        return load_file(str(path))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{str(path)!r} cannot be read: {error}") from error


def check_same(
    path: Path, expected: Mapping[str, tuple[int, ...]], found: Mapping[str, torch.Tensor]
) -> None:
    """Raise CheckpointError unless the tensors of a file are the expected ones, by name and shape."""
    missing, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    if missing or extra:
        raise CheckpointError(
            f"{str(path)!r} belongs to another adapter: {len(missing)} tensors are missing "
            f"(such as {missing[:1]}), {len(extra)} are unknown (such as {extra[:1]})."
        )
    for key, shape in expected.items():
        if tuple(found[key].shape) != shape:
            raise CheckpointError(f"{key!r} in {str(path)!r} is {tuple(found[key].shape)}, not {shape}.")
