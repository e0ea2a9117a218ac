"""The one line that each training step has in the log, whoever asked for the step.

step 3 of agent: reward 0.52 ± 0.04, 5 of 6 groups trained (1 with equal rewards),
rollouts: 2 failed, 11,688 tokens, 14.2 s (sampling 8.9, gradient 4.1, prepare 0.5, save 0.3, canary 0.3)
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev

from art.tracking.rollout_figures import has_signal, scores
from art.trajectories import TrajectoryGroup
from art.wire.jobs import STEP_PARTS, BalanceSheet, part_metric
from art.wire.rollout_record import SheetRow

_log = logging.getLogger(__name__)

_FATES = {
    "failed": "failed",
    "unscored": "without a reward",
    "no_samples": "without a sampled reply",
    "stale": "sampled too many steps ago",
    "truncated": "cut at their token limit",
    "overlong": "too long to train",
    "damaged": "damaged in the ledger",
    "mismatch": "masked: engine and trainer disagree",
    "untrainable": "not trainable",
}
"""Fates of single rollouts, in words; those of whole groups are counted in groups."""


def log_step(
    model: str,
    step: int,
    groups: Iterable[TrajectoryGroup | None],
    discarded: Iterable[TrajectoryGroup | None],
    sheet: BalanceSheet,
    *,
    metrics: Mapping[str, float],
    training_s: float,
    step_s: float | None,
) -> None:
    """Logs the line of a step. discarded: groups that the program has sorted out itself. metrics: the
    server's, with where the seconds went. step_s: since the step before.
    """
    sent = [group for group in groups if group is not None]
    aside = [group for group in discarded if group is not None]
    trained = sheet.fates.get("trained", SheetRow())
    dropped = Counter(filter(None, (_reason(group, sheet) for group in sent)))
    dropped.update(_reason(group, None) or "sorted out" for group in aside)
    given = len(sent) + len(aside)
    trained_groups = given - dropped.total() if trained.rollouts else 0
    parts = [
        _reward(sent),
        f"{trained_groups} of {given} groups trained{_in_brackets(dropped)}",
        _rollout_fates(sheet),
        f"{trained.tokens:,} tokens",
        _seconds(metrics, training_s, step_s),
    ]
    _log.info("step %d of %s: %s", step, model, ", ".join(part for part in parts if part))


def log_sft_step(
    model: str,
    step: int,
    conversations: int,
    metrics: Mapping[str, float],
    sheet: BalanceSheet,
    seconds: float,
) -> None:
    """Logs the line of a step of supervised training."""
    tokens = sheet.fates.get("trained", SheetRow()).tokens
    loss = f", loss {metrics['loss/train']:.3g}" if "loss/train" in metrics else ""
    _log.info(
        "step %d of %s: %d conversations, %s tokens%s, %.1f s",
        step,
        model,
        conversations,
        f"{tokens:,}",
        loss,
        seconds,
    )


def _reason(group: TrajectoryGroup, sheet: BalanceSheet | None) -> str | None:
    """Returns why a whole group is not trained; None: nothing speaks against it. sheet: of its step."""
    if not group.trajectories:
        return "failed" if group.exceptions else "empty"
    if not scores(group):
        return "without a reward"
    return (
        "with equal rewards"
        if not has_signal(group) and (sheet is None or "zero_advantage" in sheet.fates)
        else None
    )


def _reward(groups: Sequence[TrajectoryGroup]) -> str:
    """The mean reward and its standard error. Rollouts of one scenario are alike, so groups are counted."""
    rewards = [found for group in groups if (found := scores(group))]
    known = [reward for found in rewards for reward in found]
    if not known:
        return "no reward"
    means = [fmean(found) for found in rewards] if len(rewards) > 1 else known
    error = f" ± {stdev(means) / math.sqrt(len(means)):.2g}" if len(means) > 1 else ""
    return f"reward {fmean(known):.3g}{error}"


def _in_brackets(reasons: Counter[str]) -> str:
    counted = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    return f" ({counted})" if counted else ""


def _rollout_fates(sheet: BalanceSheet) -> str:
    counts = {words: sheet.fates.get(fate, SheetRow()).rollouts for fate, words in _FATES.items()}
    found = [f"{count} {words}" for words, count in counts.items() if count]
    return f"rollouts: {', '.join(found)}" if found else ""


_SHOWN = 0.01
"""Share of a step from which a part of it is named."""


def _seconds(metrics: Mapping[str, float], training_s: float, step_s: float | None) -> str:
    """The seconds of a step and its parts, the longest first; of an older server, how many were training."""
    parts = {part: metrics.get(part_metric(part), 0.0) for part in STEP_PARTS}
    total = sum(parts.values())
    if not total:
        return (
            f"{training_s:.1f} s" if step_s is None else f"{step_s:.1f} s ({training_s:.1f} s of it training)"
        )
    named = sorted((one for one in parts.items() if one[1] >= _SHOWN * total), key=lambda one: -one[1])
    listing = ", ".join(f"{part} {seconds:.1f}" for part, seconds in named)
    return f"{total if step_s is None else step_s:.1f} s ({listing})"
