"""How many trajectories one update of supervised training takes."""

from __future__ import annotations

from typing import Literal

from art.errors import ConfigurationError

BatchSize = int | Literal["auto"]

AUTO_BATCH_SIZE = 2
"""What "auto" is."""


def resolve_sft_batch_size(batch_size: BatchSize) -> int:
    """The number of trajectories of an update.

    >>> resolve_sft_batch_size("auto")
    2

    Raises ConfigurationError for anything but "auto" and a number from 1 on.
    """
    if batch_size == "auto":
        return AUTO_BATCH_SIZE
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ConfigurationError(f"batch_size is {batch_size!r}; it is a number from 1 on, or 'auto'")
    return batch_size
