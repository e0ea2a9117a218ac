"""Packed token arrays: names without code behind them."""

from __future__ import annotations

from typing import Any

from art.unbuilt import unbuilt_names

INSTEAD = "the trainer packs by itself and shares every common prefix; give `backend.train` the trajectories"
NAMES = dict.fromkeys(
    ("DiskPackedTensors", "PackedTensors", "packed_tensors_from_tokenized_results"), INSTEAD
)


def __getattr__(name: str) -> Any:
    return unbuilt_names(__name__, NAMES, name)
