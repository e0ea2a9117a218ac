"""Token arrays of trajectories: names without code behind them."""

from __future__ import annotations

from typing import Any

from art.unbuilt import unbuilt_names

INSTEAD = (
    "the server keeps the sampled tokens and trains on exactly those; give `backend.train` the trajectories "
    "and groups"
)
NAMES = dict.fromkeys(
    (
        "SFTBatch",
        "TokenizedResult",
        "tokenize_sft_batch",
        "tokenize_trajectory",
        "tokenize_trajectory_groups",
    ),
    INSTEAD,
)


def __getattr__(name: str) -> Any:
    return unbuilt_names(__name__, NAMES, name)
