"""A judge watched while it trains: what was found group by group, and where the figures stand.

A judge is compared with itself in a second opinion and with a hold-out, and its scores with lengths and with
known groups.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from art.errors import ConfigurationError, LlmError, VerifierError
from art.rewards.judge_view import Scorer, View, content_key, drawn_order, is_chosen, signature
from art.rewards.reward import Reward, Score, finite_scores
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import Unscored, is_choice
from art.wire.rollouts import STEP_FIELD
from art_extensions.judge_checks.agreement import (
    Covariation,
    ScorePair,
    agreement,
    holdout_gap,
    length_sums,
    scored_by_both,
)
from art_extensions.judge_checks.alarms import Alarm, Alarms, CheckReading
from art_extensions.judge_checks.calibration import CalibrationGroup, calibrate
from art_extensions.judge_checks.judge_record import JudgeRecord

LEAST_PAIRS = 20
"""The least number of pairs for a correlation. That of 20 is above 0.5 by chance once in a hundred times."""


def length_correlation(record: JudgeRecord) -> float | None:
    """Returns the correlation of score and length within groups, over the window: -1 to 1."""
    sums = zip(*(record.recent(f"length_{name}") for name in ("xy", "xx", "yy")), strict=True)
    return sum((Covariation(xy=xy, xx=xx, yy=yy) for xy, xx, yy in sums), Covariation()).correlation()


def divergence(record: JudgeRecord) -> float | None:
    """Returns how far the judge's mean rose above the hold-out's since the run began; None before there is a
    beginning to compare with.
    """
    return record.drift("holdout_gap")


@dataclass(frozen=True, kw_only=True)
class JudgeChecks:
    """Options of a `JudgeWatch`; docs/guides/judges.md says what each figure means. A limit of None never
    rings.

    Each figure is averaged over a window of groups, and no alarm rings before half a window is known. Raises
    ConfigurationError for values that could not act.
    """

    agreement_share: float = 0.1
    """Share of the groups that the judge scores a second time, in another order."""
    agreement_alarm: float | None = 0.2
    """Rings when the two opinions agree no better: pairs ordered alike less those ordered otherwise, -1 to
    1."""
    holdout: Scorer | Reward | None = None
    """A second judge, the same with another rubric, or a hand-written reward. It trains nothing."""
    holdout_share: float = 0.1
    """Share of the groups that the hold-out scores too; the first group of each policy step always is."""
    holdout_alarm: float | None = 0.1
    """Rings when judge and hold-out contradict each other by more, in scores, 0 to 1."""
    divergence_alarm: float | None = 0.15
    """Rings when the judge's mean has risen above the hold-out's by more than this since the run began."""
    length_alarm: float | None = 0.6
    """Rings when scores within groups grow with the length of what the agent wrote: rank correlation."""
    calibration: tuple[CalibrationGroup, ...] = ()
    """Groups whose true order is known."""
    calibration_every: int = 100
    """They are judged at the first group, and then at every so manieth."""
    calibration_alarm: float | None = 0.7
    """Rings when a smaller share of their pairs is ordered right."""
    window: int = 16
    """Groups over which a figure is averaged; of sampled checks, sampled groups."""
    seed: int = 0
    """Which groups are in the samples: a function of this and their content."""
    record: str | Path | None = None
    """A file, one for each run: with it a resumed run goes on with its windows, each judge by its name with
    its own. None: memory only."""
    on_alarm: Callable[[Alarm], Any] | None = None
    """Called when an alarm begins to ring. What it raises ends the scoring: a way to stop the run."""

    def __post_init__(self) -> None:
        for name in ("agreement_share", "holdout_share"):
            self._require_between(name, 0.0, 1.0)
        for name in ("agreement_alarm", "length_alarm"):
            self._require_between(name, -1.0, 1.0)
        for name in ("holdout_alarm", "divergence_alarm", "calibration_alarm"):
            self._require_between(name, 0.0, 1.0)
        for name, least in (("window", 2), ("calibration_every", 1)):
            if getattr(self, name) < least:
                raise ConfigurationError(
                    f"JudgeChecks({name}={getattr(self, name)!r}): must be at least {least}"
                )
        for group in self.calibration:
            if not isinstance(group, CalibrationGroup):
                raise ConfigurationError(
                    f"JudgeChecks(calibration=...) holds a {type(group).__name__}: use CalibrationGroup("
                    "trajectories=..., quality=...)"
                )
        if not (self.holdout is None or isinstance(self.holdout, Reward) or hasattr(self.holdout, "score")):
            raise ConfigurationError(
                f"JudgeChecks(holdout={self.holdout!r}) scores nothing: give a Scorer or a Reward, such as "
                "Ruler(another_model), Ruler(model, rubric=another) or a verifier"
            )

    def _require_between(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        if value is not None and not (math.isfinite(value) and low <= value <= high):
            raise ConfigurationError(f"JudgeChecks({name}={value!r}): must be from {low:g} to {high:g}")

    def watch(self, scorer: Scorer) -> JudgeWatch:
        """Returns the watch of a judge over a run."""
        return JudgeWatch(scorer, self)


def check_readings(checks: JudgeChecks, record: JudgeRecord) -> list[CheckReading]:
    """Returns the readings of the active checks."""
    pairs = record.recent("length_pairs")
    enough = len(pairs) >= record.half and sum(pairs) >= LEAST_PAIRS
    found = [_length(checks, length_correlation(record) if enough else None)]
    if checks.agreement_share:
        found.append(_agreement(checks, record))
    if checks.holdout is not None:
        found += [_holdout(checks, record), _divergence(checks, record)]
    if checks.calibration:
        found.append(_calibration(checks, record))
    return [one for one in found if one.limit is not None]


def _length(checks: JudgeChecks, value: float | None) -> CheckReading:
    return CheckReading(
        check="length",
        value=value,
        limit=checks.length_alarm,
        above=True,
        meaning="longer is scored higher: rank correlation {value} of score and length within groups, limit "
        "{limit}",
    )


def _agreement(checks: JudgeChecks, record: JudgeRecord) -> CheckReading:
    return CheckReading(
        check="agreement",
        value=record.mean("agreement"),
        limit=checks.agreement_alarm,
        above=False,
        meaning="shown the same trajectories in another order it orders them otherwise: agreement "
        "{value} of -1 to 1, limit {limit}",
    )


def _holdout(checks: JudgeChecks, record: JudgeRecord) -> CheckReading:
    return CheckReading(
        check="holdout",
        value=record.mean("holdout_conflict"),
        limit=checks.holdout_alarm,
        above=True,
        meaning="the hold-out orders the same trajectories otherwise: they contradict each other by {value}, "
        "limit {limit}",
    )


def _divergence(checks: JudgeChecks, record: JudgeRecord) -> CheckReading:
    return CheckReading(
        check="divergence",
        value=divergence(record),
        limit=checks.divergence_alarm,
        above=True,
        meaning="it has risen {value} above the hold-out since the run began, limit {limit}; the policy "
        "may be gaming it",
    )


def _calibration(checks: JudgeChecks, record: JudgeRecord) -> CheckReading:
    newest = record.recent("calibration")[-1:]
    return CheckReading(
        check="calibration",
        value=newest[0] if newest else None,
        limit=checks.calibration_alarm,
        above=False,
        meaning="it orders a share of {value} of the known pairs right, limit {limit}",
    )


_log = logging.getLogger(__name__)

Figures = dict[str, float]


class JudgeWatch:
    """Checks of one judge over a run. It changes no score; a check that fails is told and costs no reward."""

    def __init__(self, scorer: Scorer, checks: JudgeChecks) -> None:
        self.scorer, self.checks = scorer, checks
        self._record = JudgeRecord(checks.window, checks.record, judge=scorer.name)
        self._bells = Alarms(scorer.name)
        self._groups = self._record.groups
        self._step: int | None = None
        self._has_holdout = False

    async def check_scores(
        self,
        views: Sequence[View],
        scores: Sequence[Score],
        group: TrajectoryGroup,
        *,
        second: list[Score] | None = None,
    ) -> Figures:
        """Check the scores that `group` just got; returns metrics of the group, named `judge/...`.

        second: filled with a second opinion, the judge's own or else the hold-out's, where there is one.
        Raises what `on_alarm` raises.
        """
        opinions: dict[str, Sequence[Score]] = {}
        key, checks = content_key(views), self.checks
        number, self._groups = self._groups, self._groups + 1
        asked = []
        if len(views) > 1 and is_chosen(key, checks.agreement_share, sample="agreement", seed=checks.seed):
            asked.append(self._judge_again(views, scores, opinions))
        if checks.holdout is not None and self._in_slice(key, group):
            asked.append(self._compare_with_holdout(checks.holdout, views, scores, group, opinions))
        if checks.calibration and number % checks.calibration_every == 0:
            asked.append(self._calibrated(number))
        found = await asyncio.gather(*asked)
        if second is not None:
            second.extend(opinions.get("second opinion") or opinions.get("hold-out") or ())
        observed = reduce(lambda a, b: a | b, found, length_sums(views, scores))
        failed = {"judge/check_failed": observed.pop("check_failed", 0.0)} if asked else {}
        self._record.add(key, observed)
        shown = {f"judge/{name}": value for name, value in observed.items() if not name.startswith("length_")}
        alarms = await self._bells.update(check_readings(checks, self._record), checks.on_alarm)
        return {**shown, **self._trends(), **failed, **alarms}

    def _trends(self) -> Figures:
        known = {
            "length_correlation": length_correlation(self._record),
            "divergence": divergence(self._record),
        }
        return {f"judge/{name}": value for name, value in known.items() if value is not None}

    def _in_slice(self, key: str, group: TrajectoryGroup) -> bool:
        """Returns whether a group is in the sample, or the first of its policy step: every step has one."""
        step = max((found for one in group if (found := _step(one)) is not None), default=None)
        first = step is not None and (self._step is None or step > self._step)
        if first:
            self._step = step
        return first or is_chosen(key, self.checks.holdout_share, sample="holdout", seed=self.checks.seed)

    async def _judge_again(
        self, views: Sequence[View], scores: Sequence[Score], opinions: dict[str, Sequence[Score]]
    ) -> Figures:
        try:
            second = await self.scorer.score(views, order=_reversed_order(views), salt="second opinion")
        except (LlmError, ConfigurationError) as error:
            return self._failure("second opinion", str(error))
        opinions["second opinion"] = finite_scores(self.scorer.name, second, len(views))
        return self._compared("second opinion", scores, second, agreement)

    async def _compare_with_holdout(
        self,
        holdout: Scorer | Reward,
        views: Sequence[View],
        scores: Sequence[Score],
        group: TrajectoryGroup,
        opinions: dict[str, Sequence[Score]],
    ) -> Figures:
        try:
            if isinstance(holdout, Reward):
                opinion = await holdout.scores(group)
            else:
                opinion = await holdout.score(views)
        except (LlmError, VerifierError) as error:
            return self._failure("hold-out", str(error))
        except ConfigurationError as error:
            if not self._has_holdout:  # it never worked: whoever set it up wants to know now
                raise
            return self._failure("hold-out", str(error))
        self._has_holdout = True
        opinion = opinions["hold-out"] = finite_scores(holdout.name, opinion, len(views))
        return self._compared("hold-out", scores, opinion, holdout_gap)

    async def _calibrated(self, number: int) -> Figures:
        try:
            found = await calibrate(self.scorer, self.checks.calibration, salt=f"calibration {number}")
        except (LlmError, ConfigurationError) as error:
            return self._failure("calibration", str(error))
        if found.accuracy is None:
            return self._failure("calibration", "no pair of it was scored")
        return {"calibration": found.accuracy}

    def _compared(
        self,
        check: str,
        scores: Sequence[Score],
        other: Sequence[Score],
        figures: Callable[[Sequence[ScorePair]], Figures],
    ) -> Figures:
        """Figures of two opinions. That the judge itself scored nothing is no failure of a check."""
        reasons = [one.value.reason for one in other if isinstance(one.value, Unscored)]
        if reasons and len(reasons) == len(other):
            return self._failure(check, reasons[0])
        return figures(scored_by_both(scores, other))

    def _failure(self, check: str, reason: str) -> Figures:
        _log.warning("judge %r: %s failed, its figure is missing: %s", self.scorer.name, check, reason)
        return {"check_failed": 1.0}


def _reversed_order(views: Sequence[View]) -> list[int]:
    """The reverse of the order that the judge was shown: of equal ones it is shown the first."""
    keys = [signature(view) for view in views]
    firsts = [i for i, key in enumerate(keys) if key not in keys[:i]]
    shown = [firsts[i] for i in reversed(drawn_order([views[i] for i in firsts]))]
    return [*shown, *(i for i in range(len(views)) if i not in shown)]


def _step(trajectory: Trajectory) -> int | None:
    """The policy's step that sampled it, as far as it says."""
    if trajectory.initial_policy_version is not None:
        return trajectory.initial_policy_version
    for item in trajectory.messages_and_choices:
        if is_choice(item):
            fields = item if isinstance(item, dict) else item.model_extra or {}
            found = fields.get(STEP_FIELD)
            return found if isinstance(found, int) else None
    return None
