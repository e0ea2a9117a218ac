"""One training step of a run, as its folder keeps it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from art.runs.measure import mean
from art.trajectories import PydanticException, TrajectoryGroup
from art.types import Unscored

JUDGE = "judge/"
"""Begins the names of what the judge's checks find, in the metrics of a group."""
ALARM = "judge/alarm"
REASON_CHARS = 500


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """One line of `steps.jsonl`."""

    step: int
    reward: float | None
    """Mean over the attempts that the judge scored; None: none was."""
    rollouts: int
    failed: int
    unscored: int
    trained: int | None
    """Rollouts with a gradient; the rest had a zero advantage, no score, or failed. None: nobody said."""
    learning_rate: float
    seconds_rollouts: float
    """With the judge."""
    seconds_training: float | None
    """None: nobody was there when it ended."""
    figures: dict[str, float] = field(default_factory=dict)
    """What is known of the attempts without the judge: means, by name."""
    judge: dict[str, float] = field(default_factory=dict)
    """Figures of the judge's checks, means over the groups; empty without checks."""
    failures: dict[str, int] = field(default_factory=dict)
    """Why attempts failed, as the kind of error and what it says: how many of each."""
    recovered: bool = False
    """The process ended between the step's commit and this row, which the next one wrote."""


def mean_reward(groups: Sequence[TrajectoryGroup]) -> tuple[float | None, int]:
    """Over the attempts with a score (None: none has one), and how many have none."""
    rewards = [one.reward for group in groups for one in group]
    scored = [reward for reward in rewards if not isinstance(reward, Unscored)]
    return mean(scored), len(rewards) - len(scored)


def failures_of(groups: Sequence[TrajectoryGroup]) -> dict[str, int]:
    """Why attempts failed, the most frequent reason first.

    Example: {"McpError: MCP server 'serve' is gone": 2, "McpTimeoutError: ...": 1}.
    """
    found = Counter(
        f"{kind_of(error)}: {' '.join(error.message.split())}"[:REASON_CHARS]
        for group in groups
        for error in group.exceptions
    )
    return dict(found.most_common())


def kind_of(error: PydanticException) -> str:
    """The name of its class, which it keeps as "<class 'module.Name'>"."""
    return error.type.rstrip("'>").rpartition(".")[2].rpartition("'")[2]


def judge_figures(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Means of what the judge's checks say, over the groups of which they say it."""
    found: dict[str, list[float]] = {}
    metrics: list[Mapping[str, float | int | bool]] = [group.metrics for group in groups]
    for name, value in (item for one in metrics for item in one.items() if item[0].startswith(JUDGE)):
        found.setdefault(name, []).append(float(value))
    return {name: sum(values) / len(values) for name, values in sorted(found.items())}
