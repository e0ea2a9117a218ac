"""A judge watched while it trains: what was found group by group, and where the figures stand.

A judge is compared with itself in a second opinion and with a hold-out, and its scores with lengths and with
known groups. The record keeps the windows that the figures are averaged over.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from statistics import fmean

from art.errors import ConfigurationError, LlmError, VerifierError
from art.process.files import make_private_folder, private_opener, write_whole
from art.rewards.judge_agreement import (
    Covariation,
    ScorePair,
    agreement,
    holdout_gap,
    length_sums,
    scored_by_both,
)
from art.rewards.judge_checks import Alarms, CheckReading, JudgeChecks, calibrate
from art.rewards.judge_view import Scorer, View, content_key, drawn_order, is_chosen, signature
from art.rewards.reward import Reward, Score, finite_scores
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import Unscored, is_choice
from art.wire.rollouts import STEP_FIELD


class JudgeRecord:
    """The newest observations of each name, and its first ones. With a file it outlives the process.

    The file has one JSON object a line: the judge's name, the group's key and its observations. Groups that
    are scored again after a restart are not counted again. Judges of other names may have the same file.
    """

    def __init__(self, window: int, path: str | Path | None = None, *, judge: str) -> None:
        self.judge, self.window, self.half = judge, window, max(1, window // 2)
        self.groups = 0
        self._first: dict[str, list[float]] = {}
        self._last: dict[str, deque[float]] = {}
        self._known: Counter[str] = Counter()
        self._path = Path(path) if path is not None else None
        if self._path is not None and self._path.exists():
            self._read(self._path)

    def add(self, key: str, found: Mapping[str, float]) -> None:
        """One group's observations."""
        if self._known[key] > 0:
            self._known[key] -= 1
            return
        self._count(found)
        if self._path is not None:
            make_private_folder(self._path.parent)
            with open(self._path, "a", encoding="utf-8", opener=private_opener) as file:
                file.write(json.dumps({"judge": self.judge, "key": key, **found}) + "\n")

    def recent(self, name: str) -> list[float]:
        """Observations in the window, oldest first."""
        return list(self._last.get(name, ()))

    def mean(self, name: str) -> float | None:
        """Returns the mean over the window; None before half of it is known."""
        values = self.recent(name)
        return fmean(values) if len(values) >= self.half else None

    def drift(self, name: str) -> float | None:
        """The mean of the newest half window less that of the run's first; None before both are known."""
        values = self.recent(name)
        if len(values) < 2 * self.half:
            return None
        return fmean(values[-self.half :]) - fmean(self._first[name])

    def _count(self, found: Mapping[str, float]) -> None:
        self.groups += 1
        for name, value in found.items():
            first = self._first.setdefault(name, [])
            if len(first) < self.half:
                first.append(value)
            self._last.setdefault(name, deque(maxlen=self.window)).append(value)

    def _read(self, path: Path) -> None:
        *complete_lines, last = path.read_text(encoding="utf-8").split("\n")
        if last:  # a line that a killed process did not end: its group is not counted yet
            write_whole(path, "".join(line + "\n" for line in complete_lines), durable=False)
        for number, line in enumerate(complete_lines, 1):
            try:
                found = json.loads(line)
                key, judge = found.pop("key"), found.pop("judge", self.judge)  # older lines name none
                if judge != self.judge:
                    continue
                self._count({name: float(value) for name, value in found.items()})
            except (ValueError, TypeError, AttributeError, KeyError) as error:
                raise ConfigurationError(
                    f"{path}, line {number}: {line[:80]!r} is no line of a judge's record ({error}); "
                    "JudgeChecks(record=...) takes a file of its own"
                ) from error
            self._known[key] += 1


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
