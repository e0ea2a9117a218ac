"""What is known of attempts without a judge: figures by name, and the truth where somebody knows it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from art.trajectories import Trajectory

Measure = Callable[[Trajectory], float | Awaitable[float]]
"""How good a trajectory is, in truth: for those who know it. Plain or async."""
Figures = Callable[[Trajectory], Mapping[str, float]]
"""Numbers of one trajectory, by name: always the same names."""
MEASURE = "measure"
"""The truth among the figures."""


async def measured_value(trajectory: Trajectory, measure: Measure) -> float:
    """Returns the value of `measure`, which is plain or async."""
    value: Any = measure(trajectory)
    return float(await value if inspect.isawaitable(value) else value)


def rollout_metrics(trajectory: Trajectory) -> dict[str, float]:
    """All that the rollout measured, as figures."""
    return {name: float(value) for name, value in trajectory.metrics.items()}


async def mean_figures(
    trajectories: Sequence[Trajectory], figures: Figures, measure: Measure | None
) -> dict[str, float]:
    """Returns means by name, with the true quality if it is known; empty without trajectories."""
    found: dict[str, list[float]] = {}
    for one in trajectories:
        row = dict(figures(one))
        if measure is not None:
            row[MEASURE] = await measured_value(one, measure)
        for name, value in row.items():
            found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


def mean_of_known(values: Sequence[float | None]) -> float | None:
    """Returns the mean of the known values; None if there is none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
