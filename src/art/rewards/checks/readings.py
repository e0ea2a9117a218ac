"""Where the figures of a watched judge stand against their limits. Pure functions of its record."""

from __future__ import annotations

from art.rewards.checks.alarms import Reading
from art.rewards.checks.correlation import Covariation
from art.rewards.checks.judge_checks import JudgeChecks
from art.rewards.checks.record import Record

LEAST_PAIRS = 20
"""Of fewer, a correlation says too little: by chance alone it is above 0.5 once in a hundred times."""


def length_correlation(record: Record) -> float | None:
    """Of score and length within groups, over the window: -1 to 1."""
    sums = zip(*(record.last(f"length_{name}") for name in ("xy", "xx", "yy")), strict=True)
    return sum((Covariation(xy=xy, xx=xx, yy=yy) for xy, xx, yy in sums), Covariation()).correlation()


def divergence(record: Record) -> float | None:
    """How far the judge's mean rose above the hold-out's since the run began; None before there is a
    beginning to compare with."""
    return record.moved("holdout_gap")


def readings(checks: JudgeChecks, record: Record) -> list[Reading]:
    """Of the checks that are on."""
    pairs = record.last("length_pairs")
    enough = len(pairs) >= record.half and sum(pairs) >= LEAST_PAIRS
    found = [_length(checks, length_correlation(record) if enough else None)]
    if checks.agreement_share:
        found.append(_agreement(checks, record))
    if checks.holdout is not None:
        found += [_holdout(checks, record), _divergence(checks, record)]
    if checks.calibration:
        found.append(_calibration(checks, record))
    return [one for one in found if one.limit is not None]


def _length(checks: JudgeChecks, value: float | None) -> Reading:
    return Reading(
        check="length",
        value=value,
        limit=checks.length_alarm,
        above=True,
        meaning="longer is scored higher: rank correlation {value} of score and length within groups, limit "
        "{limit}",
    )


def _agreement(checks: JudgeChecks, record: Record) -> Reading:
    return Reading(
        check="agreement",
        value=record.mean("agreement"),
        limit=checks.agreement_alarm,
        above=False,
        meaning="shown the same trajectories in another order it orders them otherwise: agreement "
        "{value} of -1 to 1, limit {limit}",
    )


def _holdout(checks: JudgeChecks, record: Record) -> Reading:
    return Reading(
        check="holdout",
        value=record.mean("holdout_conflict"),
        limit=checks.holdout_alarm,
        above=True,
        meaning="the hold-out orders the same trajectories otherwise: they contradict each other by {value}, "
        "limit {limit}",
    )


def _divergence(checks: JudgeChecks, record: Record) -> Reading:
    return Reading(
        check="divergence",
        value=divergence(record),
        limit=checks.divergence_alarm,
        above=True,
        meaning="it has risen {value} above the hold-out since the run began, limit {limit}; the policy "
        "may be gaming it",
    )


def _calibration(checks: JudgeChecks, record: Record) -> Reading:
    newest = record.last("calibration")[-1:]
    return Reading(
        check="calibration",
        value=newest[0] if newest else None,
        limit=checks.calibration_alarm,
        above=False,
        meaning="it orders a share of {value} of the known pairs right, limit {limit}",
    )
