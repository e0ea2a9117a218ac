"""What every reward is: scores for the trajectories of a group, by a name; sums of them with weights."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from art.errors import BudgetExceededError, ConfigurationError, LlmError, VerifierError
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import Unscored

if TYPE_CHECKING:
    from art.rewards.weighted import Weighted

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Score:
    """What one trajectory got from one source, and why."""

    value: float | Unscored
    explanation: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    """What else is known: criteria by name, for instance. Kept in the trajectory's metrics."""
    notes: tuple[str, ...] = ()
    """Further lines for the trajectory's log."""


@dataclass(frozen=True, kw_only=True)
class GroupScores:
    """What a source says of a whole group."""

    scores: Sequence[Score]
    """One for each trajectory, in their order."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Of the group, such as how well a judge agrees with itself. Kept in the group's metrics."""
    notes: tuple[str, ...] = ()
    """Lines for the group's log."""


class Reward(ABC):
    """A source of rewards. Sources add up: `0.7 * Ruler() + 0.3 * form`, with weights.

    `reward.score_group` fits `after_each=` of `art.gather_trajectory_groups`.
    """

    name: str
    """Names its metric, `reward/<name>`."""

    @property
    def label(self) -> str:
        """Begins its lines in the logs: "<label> explanation: ..."."""
        return self.name

    @abstractmethod
    async def scores(self, group: TrajectoryGroup) -> Sequence[Score]:
        """One score for each of `group.trajectories`, in their order; the group is left as it is."""

    async def judge(self, group: TrajectoryGroup) -> GroupScores:
        """The scores, with what else is known of the group. Sources with figures of a group override it."""
        return GroupScores(scores=await self.scores(group))

    async def score_group(self, group: TrajectoryGroup) -> TrajectoryGroup:
        """A copy of the group whose trajectories have this reward; everything else of both is kept.

        Metrics of a trajectory: `reward/<name>`; `independent_reward`, which is the reward it came with,
        where that is a number; those of the score. Logs: the explanation. A source that cannot decide gives
        `Unscored(reason)`, never a number. Raises ConfigurationError where the source gave scores for
        another number of trajectories, BudgetExceededError.
        """
        judged = await judge(self, group)
        scored = [
            _scored(self, trajectory, score)
            for trajectory, score in zip(group.trajectories, judged.scores, strict=True)
        ]
        update = {
            "trajectories": scored,
            "metrics": {**group.metrics, **judged.metrics},
            "logs": [*group.logs, *judged.notes],
            "exceptions": list(group.exceptions),
            "metadata": dict(group.metadata),
        }
        return group.model_copy(update=update)

    def optional(self) -> Weighted:
        """In a sum: a trajectory that this source cannot score gets the mean of its group for this part."""
        from art.rewards.weighted import Part, Weighted

        return Weighted((Part(reward=self, optional=True),))

    def __mul__(self, weight: float) -> Weighted:
        from art.rewards.weighted import Part, Weighted

        return Weighted((Part(reward=self),)) * weight

    def __rmul__(self, weight: float) -> Weighted:
        return self * weight

    def __add__(self, other: Reward | int) -> Weighted:
        from art.rewards.weighted import Weighted

        return Weighted.of(self) + other

    def __radd__(self, other: int) -> Weighted:
        return self + other  # sum([...]) begins with 0

    def __sub__(self, other: Reward) -> Weighted:
        return self + (-1.0) * other if isinstance(other, Reward) else NotImplemented


async def judge(reward: Reward, group: TrajectoryGroup) -> GroupScores:
    """What `reward` says of the group, checked: as many scores as trajectories, numbers that are finite.

    A judge or verifier that failed as a whole leaves all of them unscored; only a spent budget is raised.
    """
    if not group.trajectories:
        return GroupScores(scores=())
    try:
        judged = await reward.judge(group)
    except BudgetExceededError:
        raise
    except (LlmError, VerifierError) as error:
        log.warning("reward %r could not score a group: %s", reward.name, error)
        lost = Score(value=Unscored(f"{reward.name}: {type(error).__name__}: {error}"))
        return GroupScores(scores=[lost] * len(group))
    return replace(judged, scores=checked(reward.name, judged.scores, len(group)))


def checked(source: str, scores: Sequence[Score], count: int) -> list[Score]:
    """The scores of a source, which are numbers that are finite, or `Unscored`.

    Raises ConfigurationError where there are not `count` of them.
    """
    if len(scores) != count:
        raise ConfigurationError(
            f"reward {source!r} gave {len(scores)} scores for {count} trajectories; "
            "`scores` must give one for each, in their order"
        )
    return [_finite(source, score) for score in scores]


def settled(outcomes: Sequence[T | BaseException]) -> list[T]:
    """The results of calls that ran side by side. Raises the first error, when all have ended."""
    results = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results


def lines(reward: Reward, score: Score) -> list[str]:
    """What the log of a trajectory says of its score."""
    said = [f"{reward.label} explanation: {score.explanation}"] if score.explanation else []
    if isinstance(score.value, Unscored):
        said.append(f"{reward.label} gave no score: {score.value.reason}")
    return [*said, *score.notes]


def figures(reward: Reward, score: Score) -> dict[str, float]:
    """What the metrics of a trajectory hold of its score."""
    own = {} if isinstance(score.value, Unscored) else {f"reward/{reward.name}": score.value}
    return {**score.metrics, **own}


def _finite(source: str, score: Score) -> Score:
    if isinstance(score.value, Unscored):
        return score
    value = float(score.value)
    if math.isfinite(value):
        return replace(score, value=value)
    return replace(score, value=Unscored(f"{source}: gave {value!r}, which is no reward"))


def _scored(reward: Reward, trajectory: Trajectory, score: Score) -> Trajectory:
    before = trajectory.reward
    came_with = {} if isinstance(before, Unscored) else {"independent_reward": before}
    # `model_copy` keeps what subclasses add, required or not; the containers are copied, the messages shared.
    update = {
        "reward": score.value,
        "metrics": {**trajectory.metrics, **came_with, **figures(reward, score)},
        "logs": [*trajectory.logs, *lines(reward, score)],
        "metadata": dict(trajectory.metadata),
        "messages_and_choices": list(trajectory.messages_and_choices),
        "additional_histories": list(trajectory.additional_histories),
    }
    return trajectory.model_copy(update=update)
