"""What every reward is, and sums of them.

A `Reward` scores the trajectories of a group and has a name. `Weighted` is a sum with weights, each source
kept by its name.
"""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, TypeVar

from art.errors import BudgetExceededError, ConfigurationError, LlmError, VerifierError
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import JudgeCall, Unscored, hearing_judges
from art.wire.rollout_record import JudgeNote

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The opinion of one judge on one trajectory."""

    source: str
    """The reward that asked it."""
    score: float | None
    words: str
    order: int | None = None
    second: float | None = None
    """Its score in a second opinion, or the hold-out's."""
    question: str = ""
    """What the judge was told to look for."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """The score of one trajectory from one source, and the reason."""

    value: float | Unscored
    explanation: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    """What else is known: criteria by name, for instance. Kept in the trajectory's metrics."""
    notes: tuple[str, ...] = ()
    """Further lines for the trajectory's log."""
    order: int | None = None
    """The place at which a judge was shown it among others, from 0."""
    judgements: tuple[Judgement, ...] = ()
    """What judges said of it, for the record of the step."""
    turns: Mapping[str, float] = field(default_factory=dict)
    """What single turns earned of `value`, by their samples; the last turn earned the rest."""
    turn_reasons: Mapping[str, str] = field(default_factory=dict)
    """Why, by their samples."""


@dataclass(frozen=True, kw_only=True)
class GroupScores:
    """The scores and figures of a source for a whole group."""

    scores: Sequence[Score]
    """One for each trajectory, in their order."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The figures of the group, such as how well a judge agrees with itself; kept in the group's metrics."""
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
        """A copy of the group whose trajectories have this reward, and rewards of turns as it has them;
        everything else of both is kept.

        Metrics of a trajectory: `reward/<name>`; `independent_reward`, which is the reward it came with,
        where that is a number; those of the score. Logs: the explanation. A source that cannot decide gives
        `Unscored(reason)`, never a number. Raises ConfigurationError where the source gave scores for
        another number of trajectories, BudgetExceededError.
        """
        with hearing_judges() as calls:
            judged = await judge_group(self, group)
        scored = [
            _with_score(self, trajectory, score)
            for trajectory, score in zip(group.trajectories, judged.scores, strict=True)
        ]
        for place, (trajectory, score) in enumerate(zip(scored, judged.scores, strict=True)):
            trajectory._judge = _judge_note(score, calls, first=place == 0, group_size=len(scored))
        update = {
            "trajectories": scored,
            "metrics": {**group.metrics, **judged.metrics},
            "logs": [*group.logs, *judged.notes],
            "exceptions": list(group.exceptions),
            "metadata": _copy(group.metadata),
        }
        copied = group.model_copy(update=update)
        copied._judge_calls = [*group._judge_calls, *calls]
        return copied

    def optional(self) -> Weighted:
        """Makes the source optional in a sum: a trajectory that it cannot score gets the mean of its group
        for this part.
        """
        Part = WeightedPart

        return Weighted((Part(reward=self, optional=True),))

    def __mul__(self, weight: float) -> Weighted:
        Part = WeightedPart

        return Weighted((Part(reward=self),)) * weight

    def __rmul__(self, weight: float) -> Weighted:
        return self * weight

    def __add__(self, other: Reward | int) -> Weighted:

        return Weighted.from_reward(self) + other

    def __radd__(self, other: int) -> Weighted:
        return self + other  # sum([...]) begins with 0

    def __sub__(self, other: Reward) -> Weighted:
        return self + (-1.0) * other if isinstance(other, Reward) else NotImplemented


async def judge_group(reward: Reward, group: TrajectoryGroup) -> GroupScores:
    """Returns the checked scores of `reward` for the group: one per trajectory, finite numbers.

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
    return replace(judged, scores=finite_scores(reward.name, judged.scores, len(group)))


def finite_scores(source: str, scores: Sequence[Score], count: int) -> list[Score]:
    """The scores of a source, which are numbers that are finite, or `Unscored`.

    Raises ConfigurationError where there are not `count` of them.
    """
    if len(scores) != count:
        raise ConfigurationError(
            f"reward {source!r} gave {len(scores)} scores for {count} trajectories; "
            "`scores` must give one for each, in their order"
        )
    return [_finite(source, score) for score in scores]


def results_or_first_error(outcomes: Sequence[T | BaseException]) -> list[T]:
    """The results of calls that ran side by side. Raises the first error, when all have ended."""
    results = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results


def score_log_lines(reward: Reward, score: Score) -> list[str]:
    """Returns the log lines of a trajectory's score."""
    said = [f"{reward.label} explanation: {score.explanation}"] if score.explanation else []
    if isinstance(score.value, Unscored):
        said.append(f"{reward.label} gave no score: {score.value.reason}")
    return [*said, *score.notes]


def score_metrics(reward: Reward, score: Score) -> dict[str, float]:
    """Returns the metrics of a trajectory's score."""
    own = {} if isinstance(score.value, Unscored) else {f"reward/{reward.name}": score.value}
    return {**score.metrics, **own}


def _finite(source: str, score: Score) -> Score:
    if isinstance(score.value, Unscored):
        return replace(score, turns={})
    value = float(score.value)
    odd = [one for one in (value, *score.turns.values()) if not math.isfinite(one)]
    if not odd:
        return replace(score, value=value)
    return replace(score, value=Unscored(f"{source}: gave {odd[0]!r}, which is no reward"), turns={})


_OWN_VALUES = ("metadata", "turn_values", "turn_states")


def _with_score(reward: Reward, trajectory: Trajectory, score: Score) -> Trajectory:
    before = trajectory.reward
    came_with = {} if isinstance(before, Unscored) else {"independent_reward": before}
    # `model_copy` keeps what subclasses add, required or not; the containers are copied, the messages shared.
    update = {
        "reward": score.value,
        "turn_rewards": dict(score.turns),  # those of before were parts of another reward
        "turn_reasons": dict(score.turn_reasons),
        "metrics": {**trajectory.metrics, **came_with, **score_metrics(reward, score)},
        "logs": [*trajectory.logs, *score_log_lines(reward, score)],
        "messages_and_choices": list(trajectory.messages_and_choices),
        "additional_histories": list(trajectory.additional_histories),
        **{name: _copy(getattr(trajectory, name)) for name in _OWN_VALUES},
    }
    return trajectory.model_copy(update=update)


def _copy(value: Any) -> Any:
    """A value whose plain containers are copied; other objects are shared."""
    if type(value) is dict:
        return {name: _copy(one) for name, one in value.items()}
    return [_copy(one) for one in value] if type(value) is list else value


def _judge_note(
    score: Score, calls: Sequence[JudgeCall], *, first: bool, group_size: int
) -> JudgeNote | None:
    """The record of what judges said of a trajectory; None where nobody was asked."""
    judgements = score.judgements
    if not judgements:
        return None
    sources = {f"judge/{one.source}" for one in judgements}
    asked = [call for call in calls if call.source in sources]
    prices = [call.usd for call in asked if call.usd is not None and not call.cached]
    several = len(judgements) > 1
    words = [f"{one.source}: {one.words}" if several else one.words for one in judgements if one.words]
    questions = [f"{one.source}: {one.question}" if several else one.question for one in judgements]
    return JudgeNote(
        name=", ".join(dict.fromkeys(call.model for call in asked)) or None,
        words="\n".join(words) or None,
        order=judgements[0].order,
        price_usd=sum(prices) / group_size if prices else None,
        score=judgements[0].score,
        second=judgements[0].second,
        question=("\n\n".join(questions) or None) if first else None,
    )


ALARM = "judge/alarm"


@dataclass(frozen=True, kw_only=True)
class WeightedPart:
    """One term of a sum."""

    reward: Reward
    weight: float = 1.0
    optional: bool = False
    """Where this source gives no score, the mean of the group's others stands in: no help and no harm. Where
    it scored none of the group, the part is left out."""


class Weighted(Reward):
    """The sum of weight x value over its parts, which are asked side by side.

    Example: 0.7 * 0.5 (ruler) + 0.3 * 1.0 (form) = 0.65, with metrics `reward/ruler` 0.5, `reward/form` 1.0
    and `reward/<name>` 0.65. Values are taken as they are: nothing is normalised. A part without a score
    leaves the trajectory unscored, unless it is optional and another part has a score.
    """

    def __init__(self, parts: Sequence[WeightedPart], *, name: str = "total") -> None:
        """Raises ConfigurationError where two parts, or a part and the sum, have one name, or a weight is no
        finite number.
        """
        self.name = name
        self.parts = tuple(parts)
        names = [name for part in self.parts for name in _metric_names(part.reward)]
        for part in self.parts:
            if not math.isfinite(part.weight):
                raise ConfigurationError(
                    f"weight {part.weight!r} of reward {part.reward.name!r}: a number is needed"
                )
        for taken in names:
            if names.count(taken) > 1 or taken == name:
                raise ConfigurationError(
                    f"two rewards of a sum are called {taken!r}; give one another `name=`: their metrics are "
                    f"`reward/<name>`. Parts: {', '.join(names)}; sum: {name}"
                )

    @classmethod
    def from_reward(cls, reward: Reward) -> Weighted:
        """The reward as a sum of itself; a sum that was given no name of its own stays what it is."""
        if isinstance(reward, Weighted) and reward.name == "total":
            return reward
        return cls((WeightedPart(reward=reward),))

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each part by its metric: `reward_parts` of the algorithm `gdpo`."""
        return {f"reward/{part.reward.name}": part.weight for part in self.parts}

    def with_name(self, name: str) -> Weighted:
        """The same sum with a name of its own: one term in sums of its own."""
        return Weighted(self.parts, name=name)

    def optional(self) -> Weighted:
        """Each of its parts is optional."""
        return Weighted([replace(part, optional=True) for part in self.parts], name=self.name)

    async def scores(self, group: TrajectoryGroup) -> Sequence[Score]:
        return (await self.judge(group)).scores

    async def judge(self, group: TrajectoryGroup) -> GroupScores:
        """Raises BudgetExceededError of a part, when the others have ended."""
        calls = [judge_group(part.reward, group) for part in self.parts]
        judged = results_or_first_error(await asyncio.gather(*calls, return_exceptions=True))
        stand_ins = [_mean(one.scores) for one in judged]
        rows = zip(*(one.scores for one in judged), strict=True)
        return GroupScores(
            scores=[self._sum(row, stand_ins) for row in rows],
            metrics=_merged_metrics(
                {p.reward.name: j.metrics for p, j in zip(self.parts, judged, strict=True)}
            ),
            notes=tuple(note for one in judged for note in one.notes),
        )

    def _sum(self, row: Sequence[Score], stand_ins: Sequence[float]) -> Score:
        total, missing = 0.0, []
        turns: Counter[str] = Counter()
        for part, score, stand_in in zip(self.parts, row, stand_ins, strict=True):
            if not isinstance(score.value, Unscored):
                total += part.weight * score.value
                for sample, earned in score.turns.items():
                    turns[sample] += part.weight * earned  # type: ignore[assignment]  # as in `averages`
            elif part.optional:
                total += part.weight * stand_in
            else:
                missing.append(score.value.reason)
        reasons = [score.value.reason for score in row if isinstance(score.value, Unscored)]
        if len(reasons) == len(row):  # of what nobody scored, a mean of others would be made up
            missing = reasons
        metrics: dict[str, float] = {}
        notes: list[str] = []
        judgements = tuple(one for score in row for one in score.judgements)
        for part, score in zip(self.parts, row, strict=True):
            metrics |= score_metrics(part.reward, score)
            notes += score_log_lines(part.reward, score)
        value = Unscored("; ".join(missing)) if missing else total
        earned_by = {} if missing else dict(turns)
        scored = Score(
            value=value, metrics=metrics, notes=tuple(notes), judgements=judgements, turns=earned_by
        )
        reasons_of = {one: [score.turn_reasons.get(one) for score in row] for one in earned_by}
        why = {one: "\n".join(filter(None, given)) for one, given in reasons_of.items() if any(given)}
        return replace(scored, turn_reasons=why)

    def __mul__(self, weight: float) -> Weighted:
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            return NotImplemented
        if self.name != "total":
            return Weighted.from_reward(self) * weight
        return Weighted([replace(part, weight=part.weight * weight) for part in self.parts])

    def __add__(self, other: Reward | int) -> Weighted:
        if isinstance(other, Reward):
            return Weighted((*Weighted.from_reward(self).parts, *Weighted.from_reward(other).parts))
        return Weighted.from_reward(self) if other == 0 else NotImplemented


def _metric_names(reward: Reward) -> list[str]:
    """Returns the names of the metrics that it writes: a sum's parts have their own."""
    inner = reward.parts if isinstance(reward, Weighted) else ()
    return [reward.name, *(name for part in inner for name in _metric_names(part.reward))]


def _merged_metrics(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Metrics of groups by source, in one: a name that several use gets the source behind it, as in
    `judge/agreement/<source>`. `judge/alarm` rings while one of them does.
    """
    uses = Counter(key for one in metrics.values() for key in one)
    merged = {
        key if uses[key] == 1 else f"{key}/{source}": value
        for source, one in metrics.items()
        for key, value in one.items()
    }
    if uses[ALARM] > 1:
        merged[ALARM] = max(one.get(ALARM, 0.0) for one in metrics.values())
    return merged


def _mean(scores: Sequence[Score]) -> float:
    known = [score.value for score in scores if not isinstance(score.value, Unscored)]
    return fmean(known) if known else 0.0
