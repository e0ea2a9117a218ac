"""A judge watched while it trains: what it says twice, beside a hold-out, of lengths and of known groups."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import reduce

from art.errors import ConfigurationError, LlmError, VerifierError
from art.rewards.checks.alarms import Bells
from art.rewards.checks.calibration import calibrate
from art.rewards.checks.judge_checks import JudgeChecks
from art.rewards.checks.opinions import Pair, agreement, holdout_gap, length_sums, scored_by_both
from art.rewards.checks.readings import divergence, length_correlation, readings
from art.rewards.checks.record import Record
from art.rewards.checks.selection import content_key, is_chosen
from art.rewards.judging.presentation import drawn_order, signature
from art.rewards.judging.scorer import Scorer
from art.rewards.judging.view import View
from art.rewards.reward import Reward, Score, checked
from art.trajectories import Trajectory, TrajectoryGroup
from art.turns import is_choice
from art.types import Unscored
from art.wire.headers import STEP_FIELD

_log = logging.getLogger(__name__)

Figures = dict[str, float]


class JudgeWatch:
    """Checks of one judge over a run. It changes no score; a check that fails is told and costs no reward."""

    def __init__(self, scorer: Scorer, checks: JudgeChecks) -> None:
        self.scorer, self.checks = scorer, checks
        self._record = Record(checks.window, checks.record, judge=scorer.name)
        self._bells = Bells(scorer.name)
        self._groups = self._record.groups
        self._step: int | None = None
        self._held = False

    async def after(self, views: Sequence[View], scores: Sequence[Score], group: TrajectoryGroup) -> Figures:
        """Check the scores that `group` just got; returns metrics of the group, named `judge/...`.

        Raises what `on_alarm` raises.
        """
        key, checks = content_key(views), self.checks
        number, self._groups = self._groups, self._groups + 1
        asked = []
        if len(views) > 1 and is_chosen(key, checks.agreement_share, sample="agreement", seed=checks.seed):
            asked.append(self._twice(views, scores))
        if checks.holdout is not None and self._in_slice(key, group):
            asked.append(self._beside_holdout(checks.holdout, views, scores, group))
        if checks.calibration and number % checks.calibration_every == 0:
            asked.append(self._calibrated(number))
        found = await asyncio.gather(*asked)
        observed = reduce(lambda a, b: a | b, found, length_sums(views, scores))
        failed = {"judge/check_failed": observed.pop("check_failed", 0.0)} if asked else {}
        self._record.add(key, observed)
        told = {f"judge/{name}": value for name, value in observed.items() if not name.startswith("length_")}
        alarms = await self._bells.hear(readings(checks, self._record), checks.on_alarm)
        return {**told, **self._trends(), **failed, **alarms}

    def _trends(self) -> Figures:
        known = {
            "length_correlation": length_correlation(self._record),
            "divergence": divergence(self._record),
        }
        return {f"judge/{name}": value for name, value in known.items() if value is not None}

    def _in_slice(self, key: str, group: TrajectoryGroup) -> bool:
        """In the sample, or the first group of its policy step: no step goes without."""
        step = max((found for one in group if (found := _step(one)) is not None), default=None)
        first = step is not None and (self._step is None or step > self._step)
        if first:
            self._step = step
        return first or is_chosen(key, self.checks.holdout_share, sample="holdout", seed=self.checks.seed)

    async def _twice(self, views: Sequence[View], scores: Sequence[Score]) -> Figures:
        try:
            second = await self.scorer.score(views, order=_opposite(views), salt="second opinion")
        except (LlmError, ConfigurationError) as error:
            return self._failure("second opinion", str(error))
        return self._compared("second opinion", scores, second, agreement)

    async def _beside_holdout(
        self, holdout: Scorer | Reward, views: Sequence[View], scores: Sequence[Score], group: TrajectoryGroup
    ) -> Figures:
        try:
            if isinstance(holdout, Reward):
                held = await holdout.scores(group)
            else:
                held = await holdout.score(views)
        except (LlmError, VerifierError) as error:
            return self._failure("hold-out", str(error))
        except ConfigurationError as error:
            if not self._held:  # it never worked: whoever set it up wants to know now
                raise
            return self._failure("hold-out", str(error))
        self._held = True
        held = checked(holdout.name, held, len(views))
        return self._compared("hold-out", scores, held, holdout_gap)

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
        figures: Callable[[Sequence[Pair]], Figures],
    ) -> Figures:
        """Figures of two opinions. That the judge itself scored nothing is no failure of a check."""
        reasons = [one.value.reason for one in other if isinstance(one.value, Unscored)]
        if reasons and len(reasons) == len(other):
            return self._failure(check, reasons[0])
        return figures(scored_by_both(scores, other))

    def _failure(self, check: str, reason: str) -> Figures:
        _log.warning("judge %r: %s failed, its figure is missing: %s", self.scorer.name, check, reason)
        return {"check_failed": 1.0}


def _opposite(views: Sequence[View]) -> list[int]:
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
