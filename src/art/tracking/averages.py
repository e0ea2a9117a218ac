"""Averages of rollouts. Pure functions; unscored rollouts count in no mean of rewards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean, pstdev
from typing import Any

from art.trajectories import Trajectory, TrajectoryGroup
from art.types import Unscored


def as_groups(trajectories: Iterable[Any]) -> list[TrajectoryGroup]:
    """Groups as they are; trajectories and exceptions as one group."""
    items = list(trajectories)
    if all(isinstance(item, TrajectoryGroup) for item in items):
        return items
    if all(isinstance(item, Trajectory | BaseException) for item in items):
        return [TrajectoryGroup(items)]
    raise TypeError(
        "trajectories must be an iterable of TrajectoryGroup objects "
        "or an iterable of Trajectory/BaseException items"
    )


def summarize(groups: list[TrajectoryGroup], split: str) -> tuple[dict[str, float], dict[str, float]]:
    """Averages of a split, and counts that belong to no split.

    reward: mean over all scored trajectories. reward_std_dev: mean over groups with more than one of their
    population standard deviation. exception_rate: failed of all. unscored_rate: unscored of the trajectories,
    if there are any. Example: rewards [1, 0] and [1, Unscored] give reward 0.667, reward_std_dev 0.5,
    unscored_rate 0.25.
    """
    trajectories = [trajectory for group in groups for trajectory in group]
    failed = sum(len(group.exceptions) for group in groups)
    rewards = [scores(group) for group in groups]
    spreads = [pstdev(found) for found in rewards if len(found) > 1]
    averages = _means(trajectory.metrics for trajectory in trajectories)
    averages |= {f"group_{name}": mean for name, mean in _means(g.metrics for g in groups if len(g)).items()}
    averages["reward_std_dev"] = fmean(spreads) if spreads else 0.0
    scored = [reward for found in rewards for reward in found]
    if scored:
        averages["reward"] = fmean(scored)
    if trajectories or failed:
        averages["exception_rate"] = failed / (len(trajectories) + failed)
    if unscored := len(trajectories) - len(scored):
        averages["unscored_rate"] = unscored / len(trajectories)
    data = {
        "data/step_num_scenarios": float(len(groups)),
        "data/step_num_trajectories": float(len(trajectories) + failed),
        "data/step_num_groups_submitted": float(len(groups)),
    }
    if split == "train":
        data["data/step_num_groups_trainable"] = float(sum(len(set(found)) > 1 for found in rewards))
    return averages, data


def scores(group: TrajectoryGroup) -> list[float]:
    """The rewards that are known."""
    return [float(t.reward) for t in group if not isinstance(t.reward, Unscored)]


def _means(metrics: Iterable[Mapping[str, float | int | bool]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for one in metrics:
        for name, value in one.items():
            if value is not None:
                values.setdefault(name, []).append(float(value))
    return {name: fmean(found) for name, found in values.items()}
