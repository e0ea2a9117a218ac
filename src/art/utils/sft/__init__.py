"""What `art.utils.sft` is known to hold; the code is in `art.datasets`. Each name is loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from art.datasets.batch_size import resolve_sft_batch_size
    from art.datasets.chunks import SFTChunk, create_sft_dataset_iterator
    from art.datasets.schedule import create_lr_schedule
    from art.datasets.sft_file import get_file_row_count, iterate_file, train_sft_from_file

__all__ = [
    "SFTChunk",
    "create_lr_schedule",
    "create_sft_dataset_iterator",
    "get_file_row_count",
    "iterate_file",
    "resolve_sft_batch_size",
    "train_sft_from_file",
]
_HOMES = ("art.datasets.schedule", "art.datasets.batch_size", "art.datasets.chunks", "art.datasets.sft_file")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'art.utils.sft' has no attribute {name!r}")
    for home in _HOMES:
        found = getattr(import_module(home), name, None)
        if found is not None:
            return found
    raise AssertionError(name)
