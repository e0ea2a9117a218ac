"""Averages of rollouts. Pure functions; unscored rollouts count in no mean of rewards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any

from art.tracking.names import SPLITS, check_name, is_managed, number
from art.tracking.rollout_figures import rollout_figures, scores
from art.trajectories import Trajectory, TrajectoryGroup, gathered_groups

BUILT_IN = frozenset({"reward", "reward_std_dev", "exception_rate", "unscored_rate"})

Metrics = Mapping[str, float | int | bool | None]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The averages of a set of groups.

    averages: means over the split, their names without it. sums: managed metrics of rollouts and groups,
    added up. counts: how much data there was. scenarios: the ids in `metadata["scenario_id"]`.
    """

    averages: dict[str, float] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    scenarios: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class TrajectoryBatchSummary:
    """The amount of data in a batch of groups."""

    num_scenarios: int
    num_trajectories: int
    """Failed ones included."""
    num_groups_submitted: int
    num_groups_trainable: int
    """Groups with more than one reward."""
    scenario_ids: list[str] = field(default_factory=list)
    """Those of `metadata["scenario_id"]`, each once."""


def as_groups(trajectories: Iterable[Any]) -> list[TrajectoryGroup]:
    """Groups as they are, lists of trajectories as groups; trajectories and exceptions as one group. None (no
    group was kept) is left out.
    """
    items = [item for item in gathered_groups(trajectories, "log()") if item is not None]
    if all(isinstance(item, TrajectoryGroup) for item in items):
        return items
    if all(isinstance(item, Trajectory | BaseException) for item in items):
        return [TrajectoryGroup(items)]
    raise TypeError(
        "trajectories must be an iterable of TrajectoryGroup objects "
        "or an iterable of Trajectory/BaseException items"
    )


def summarize(groups: list[TrajectoryGroup], split: str) -> Summary:
    """Averages, sums and counts of a split.

    reward: mean over all scored trajectories. reward_std_dev: mean over groups with more than one of their
    population standard deviation. exception_rate: failed of all. unscored_rate: unscored of the trajectories,
    if there are any. A rollout's own metric with one of these names is logged as `metric_<name>`. Beside
    them: `art.tracking.rollout_figures`. Example:
    rewards [1, 0] and [1, Unscored] give reward 0.667, reward_std_dev 0.5, unscored_rate 0.25.
    """
    trajectories = [trajectory for group in groups for trajectory in group]
    failed = sum(len(group.exceptions) for group in groups)
    rewards = [scores(group) for group in groups]
    spreads = [pstdev(found) for found in rewards if len(found) > 1]
    own = _means(trajectory.metrics for trajectory in trajectories)
    averages = {f"metric_{name}" if name in BUILT_IN else name: mean for name, mean in own.items()}
    # A metric of the user's own with the name of such a figure stays what it is.
    averages = {**rollout_figures(groups), **averages}
    averages |= {f"group_{name}": mean for name, mean in _means(g.metrics for g in groups if len(g)).items()}
    averages["reward_std_dev"] = fmean(spreads) if spreads else 0.0
    scored = [reward for found in rewards for reward in found]
    if scored:
        averages["reward"] = fmean(scored)
    if trajectories or failed:
        averages["exception_rate"] = failed / (len(trajectories) + failed)
    if unscored := len(trajectories) - len(scored):
        averages["unscored_rate"] = unscored / len(trajectories)
    batch = summarize_trajectory_groups(groups)
    counts = build_data_metrics_from_summary(batch, include_trainable_groups=split == "train")
    return Summary(
        averages=averages,
        sums=_sums([*(t.metrics for t in trajectories), *(group.metrics for group in groups)]),
        counts=counts if split in SPLITS else {},
        scenarios=frozenset(batch.scenario_ids),
    )


def summarize_trajectory_groups(groups: Iterable[TrajectoryGroup]) -> TrajectoryBatchSummary:
    """Returns how much data the groups are. Unscored rollouts count as trajectories, and have no reward."""
    batch = list(groups)
    return TrajectoryBatchSummary(
        num_scenarios=len(batch),
        num_trajectories=sum(len(group) + len(group.exceptions) for group in batch),
        num_groups_submitted=len(batch),
        num_groups_trainable=sum(len(set(scores(group))) > 1 for group in batch),
        scenario_ids=list(dict.fromkeys(_scenarios(batch))),
    )


def build_data_metrics_from_summary(
    summary: TrajectoryBatchSummary, *, include_trainable_groups: bool
) -> dict[str, float]:
    """The counts as metrics: `data/step_num_scenarios` and so on."""
    metrics = {
        "data/step_num_scenarios": float(summary.num_scenarios),
        "data/step_num_trajectories": float(summary.num_trajectories),
        "data/step_num_groups_submitted": float(summary.num_groups_submitted),
    }
    trainable = {"data/step_num_groups_trainable": float(summary.num_groups_trainable)}
    return metrics | trainable if include_trainable_groups else metrics


def _scenarios(groups: list[TrajectoryGroup]) -> Iterator[str]:
    for group in groups:
        for holder in (group, *group):
            if (found := holder.metadata.get("scenario_id")) is not None:
                yield str(found)


def _means(metrics: Iterable[Metrics]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for name, value in _numbers(metrics):
        if not is_managed(name):
            values.setdefault(name, []).append(value)
    return {name: fmean(found) for name, found in values.items()}


def _sums(metrics: Iterable[Metrics]) -> dict[str, float]:
    sums: Counter[str] = Counter()
    for name, value in _numbers(metrics):
        if is_managed(name):
            sums[name] += value  # type: ignore[assignment]  # typeshed counts whole numbers only
    return dict(sums)


def _numbers(metrics: Iterable[Metrics]) -> Iterator[tuple[str, float]]:
    for one in metrics:
        for name, value in one.items():
            check_name(name)
            if value is not None:
                yield name, number(name, value)
