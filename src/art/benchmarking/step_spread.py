"""How much the rewards of attempts at one scenario differ."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean, pstdev

from art.tracking.averages import scores
from art.trajectories import TrajectoryGroup


def calculate_step_std_dev(trajectory_groups: Iterable[TrajectoryGroup]) -> float:
    """The mean over groups with several rewards of their population standard deviation; 0 without any."""
    spreads = [pstdev(found) for group in trajectory_groups if len(found := scores(group)) > 1]
    return fmean(spreads) if spreads else 0.0
