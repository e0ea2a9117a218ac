"""Logs of made-up models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import art
from art.tracking.trajectory_log import append_groups


def log(
    root: Path,
    model: str,
    step: int,
    rewards: Sequence[Sequence[float | art.Unscored]],
    split: str = "val",
    metrics: Mapping[str, float] | None = None,
) -> None:
    """Groups of trajectories with these rewards, in the project "p"."""
    groups = [
        art.TrajectoryGroup([art.Trajectory(reward=reward, metrics=dict(metrics or {})) for reward in group])
        for group in rewards
    ]
    append_groups(root / "p" / "models" / model / "trajectories" / split / f"{step:04d}.parquet", groups)
