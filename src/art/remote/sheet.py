"""The client's half of the balance: what was sent is what the server accounts for. And what the log says of a
step."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from art.errors import UnbalancedSheetError
from art.wire.jobs import BalanceSheet, TrainGroup
from art.wire.training import RATE_BY_SIZE
from art.wire.untrainable import UNTRAINABLE

log = logging.getLogger(__name__)

FAR = 20.0
"""A learning rate so many times below the one for the model's size is told of: tasks differ by less."""

WHY = {
    "no_samples": "no reply to learn from: append completion.choices[0] to messages_and_choices, or set "
    "allow_training_without_logprobs=True to train on dicts",
    "zero_advantage": "its reward is that of its whole group",
    "unscored": "no reward",
    "failed": "an exception",
    "stale": "sampled too many steps ago: max_steps_off_policy allows more, up to the server's bound",
    "discarded": "left out by the program",
    "truncated": "cut at its token limit",
    "damaged": "a sample's row in the server's ledger is not what was written; the server's log names it",
    "overlong": "longer than can be trained",
    "mismatch": "the algorithm's mismatch masks dropped every token of the step: engine and trainer "
    "disagree, or the masks are too narrow (loss/logprob_difference_mean and loss/ratio_mean say how far)",
    "untrainable": "no sample from a distribution that the trainer computes",
}
"""What a fate means, and the remedy where there is one."""


def check_sheet(sheet: BalanceSheet, groups: Sequence[TrainGroup]) -> None:
    """Every rollout that was sent has met exactly one fate. Raises UnbalancedSheetError otherwise."""
    check_rollouts(sheet, sum(len(group.trajectories) + group.failed for group in groups))


def check_rollouts(sheet: BalanceSheet, sent: int) -> None:
    """As `check_sheet`, of so many rollouts. Raises UnbalancedSheetError."""
    rollouts = sum(row.rollouts for row in sheet.fates.values())
    tokens = sum(row.tokens for row in sheet.fates.values())
    if not sent == sheet.started.rollouts == rollouts or sheet.started.tokens != tokens:
        raise UnbalancedSheetError(
            f"{sent} rollouts were sent; the sheet started {sheet.started.rollouts} and has fates for "
            f"{rollouts}, of {sheet.started.tokens} tokens for {tokens}: {sheet.model_dump_json()}"
        )


def tell_untrained(sheet: BalanceSheet, model: str, step: int) -> None:
    """A line in the log where nothing was trained: the step counts, and the weights are those before it."""
    if "trained" in sheet.fates:
        return
    fates = [
        f"{row.rollouts} {name} ({WHY.get(name, name)})" for name, row in sheet.fates.items() if row.rollouts
    ]
    log.warning(
        "step %d of %s trained nothing: %s", step, model, "; ".join(fates) or "there were no rollouts"
    )


def tell_context(sheet: BalanceSheet, model: str, step: int, told: set[tuple[str, str]]) -> None:
    """A line in the log for samples that could only be context: of each model, once for each reason.

    told: what was said before; grows.
    """
    for reason, row in sheet.context.items():
        if (model, reason) in told:
            continue
        told.add((model, reason))
        log.warning(
            "step %d of %s: %d samples (%d tokens) are context and were not trained: %s. Said once; "
            "result.sheet.context counts them in each step",
            step,
            model,
            row.samples,
            row.tokens,
            UNTRAINABLE.get(reason, reason),
        )


def tell_low_rate(given: float | None, metrics: Mapping[str, float], model: str, told: set[str]) -> None:
    """A line in the log, once for each model, where the full rate of its steps is far below the one that the
    literature gives for its size: such a run looks as if nothing could be learned.

    told: the models of which it was said before; grows.
    """
    by_size = metrics.get(RATE_BY_SIZE)
    if given is None or by_size is None or given * FAR >= by_size or model in told:
        return
    told.add(model)
    log.warning(
        "the learning rate of %s is %.2g, %.0f times below the %.2g that the literature gives for its size: "
        "it will learn very slowly. Pass learning_rate=None to take that rate, or one of your own. Said once",
        model,
        given,
        by_size / given,
        by_size,
    )
