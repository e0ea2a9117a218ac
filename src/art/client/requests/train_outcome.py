"""The check of what came of a training job.

The balance sheet is compared with what was sent. Warnings say what was not trained, and which numbers look
ill.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from art.errors import UnbalancedSheetError
from art.wire.jobs import (
    IDENTICAL,
    ONE_SEED_GROUPS,
    BalanceSheet,
    TrainGroup,
    TrainResultInfo,
)
from art.wire.samples import UNTRAINABLE
from art.wire.training import RATE_BY_SIZE

log = logging.getLogger(__name__)
ENTROPY, KL_TO_REFERENCE = "loss/entropy", "loss/kl_policy_ref"
LOW_RATE_FACTOR = 20.0
HIGH_RATE_FACTOR = 50.0
"""A learning rate so many times below or above the one for the model's size is told of: tasks differ by less.
"""

REASONS_UNTRAINED = {
    "no_samples": "no reply to learn from: append completion.choices[0] to messages_and_choices, let the "
    "agent of art.rollout use its base_url, or set allow_training_without_logprobs=True to train on dicts",
    "zero_advantage": "all rewards in each group are equal, so there is no gradient",
    "unscored": "no reward",
    "failed": "an exception",
    "stale": "sampled too many steps ago: max_steps_off_policy allows more, up to the server's bound",
    "discarded": "left out by the program",
    "replaced": "another group was rolled out in place of one without a signal",
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
    """Checks the sheet as `check_sheet` does, for a number of rollouts. Raises UnbalancedSheetError."""
    rollouts = sum(row.rollouts for row in sheet.fates.values())
    tokens = sum(row.tokens for row in sheet.fates.values())
    if not sent == sheet.started.rollouts == rollouts or sheet.started.tokens != tokens:
        raise UnbalancedSheetError(
            f"{sent} rollouts were sent; the sheet started {sheet.started.rollouts} and has outcomes for "
            f"{rollouts}, of {sheet.started.tokens} tokens for {tokens}: {sheet.model_dump_json()}"
        )


def warn_untrained(sheet: BalanceSheet, model: str, step: int, groups: Sequence[TrainGroup] = ()) -> None:
    """A line in the log where nothing was trained: the step counts, and the weights are those before it.

    groups: as they were sent; groups of one rollout each are told by that cause.
    """
    if "trained" in sheet.fates:
        return
    single = groups and all(len(group.trajectories) + group.failed == 1 for group in groups)
    if single and "zero_advantage" in sheet.fates:
        log.warning(
            "step %d of %s trained nothing: each group has one rollout. The group size must be at least 2, "
            "because an advantage compares the rollouts of one group",
            step,
            model,
        )
        return
    fates = [
        f"{row.rollouts} {name} ({REASONS_UNTRAINED.get(name, name)})"
        for name, row in sheet.fates.items()
        if row.rollouts
    ]
    log.warning(
        "step %d of %s trained nothing: %s", step, model, "; ".join(fates) or "there were no rollouts"
    )


def warn_context_only(sheet: BalanceSheet, model: str, step: int, warned: set[tuple[str, str]]) -> None:
    """A line in the log for samples that could only be context: of each model, once for each reason.

    warned: what was said before; grows.
    """
    for reason, row in sheet.context.items():
        if (model, reason) in warned:
            continue
        warned.add((model, reason))
        log.warning(
            "step %d of %s: %d samples (%d tokens) are context and were not trained: %s. Said once; "
            "result.sheet.context counts them in each step",
            step,
            model,
            row.samples,
            row.tokens,
            UNTRAINABLE.get(reason, reason),
        )


def warn_one_seed(metrics: Mapping[str, float], model: str, step: int, warned: set[str]) -> None:
    """A line in the log, once for each model, for groups whose requests all had one seed: their rollouts are
    one rollout again and again, and say nothing about each other.

    warned: the models of which it was said before; grows.
    """
    count = metrics.get(ONE_SEED_GROUPS, 0.0)
    if not count or model in warned:
        return
    warned.add(model)
    log.warning(
        "step %d of %s: %d groups have one `seed` for all their rollouts, so all of them got the same reply "
        "and there is nothing to compare. Give each rollout's requests a seed of their own, or none. Said "
        "once; %s counts them in each step",
        step,
        model,
        count,
        ONE_SEED_GROUPS,
    )


def warn_identical(
    sheet: BalanceSheet, metrics: Mapping[str, float], model: str, step: int, warned: set[str]
) -> None:
    """A line in the log, once for each model, for a step in which all trained rollouts are the same as others
    of their group, so that different rewards cancel out.

    warned: the models of which it was said before; grows.
    """
    trained, count = sheet.fates.get("trained"), metrics.get(IDENTICAL, 0.0)
    if trained is None or count < trained.rollouts or model in warned:
        return
    warned.add(model)
    log.warning(
        "step %d of %s learned nothing: its %d trained rollouts sampled the same tokens as others of their "
        "group, so that their different rewards cancel out. Sample at a higher temperature, without one seed "
        "for a whole group, and reward what the reply says. Said once; %s counts them in each step",
        step,
        model,
        trained.rollouts,
        IDENTICAL,
    )


def warn_rate(
    learning_rate: float | None, metrics: Mapping[str, float], model: str, warned: set[str]
) -> None:
    """A line in the log, once for each model, where the full rate of its steps is far from the one that the
    literature gives for its size: with less a run looks as if nothing could be learned, with more a step may
    destroy the model.

    warned: the models of which it was said before; grows.
    """
    by_size = metrics.get(RATE_BY_SIZE)
    if learning_rate is None or by_size is None or model in warned:
        return
    if learning_rate * LOW_RATE_FACTOR < by_size:
        times, cause = f"{by_size / learning_rate:.0f} times below", "it will learn very slowly"
    elif learning_rate > HIGH_RATE_FACTOR * by_size:
        times, cause = f"{learning_rate / by_size:.0f} times above", "one step may destroy the model"
    else:
        return
    warned.add(model)
    log.warning(
        "the learning rate of %s is %.2g, %s the %.2g that the literature gives for its size: %s. Pass "
        "learning_rate=None to take that rate, or one of your own. Said once",
        model,
        learning_rate,
        times,
        by_size,
        cause,
    )


UNLIKELY = 0.01
"""Chance of a batch without a signal below which it is a destroyed policy."""
ENTROPY_RISE = 1.0
"""Nats a token above the first step's, and twice as much, from which on replies are noise."""
ENTROPY_LEFT = 0.05
"""Share of the first step's entropy below which replies are all the same."""
FAR_FROM_REFERENCE = 1.0
"""Nats a token of KL to the reference, from which on little of it is left."""


@dataclass(kw_only=True)
class DivergenceWatch:
    """The steps of one model, so far as they tell a policy that a step destroyed: in one of the next steps no
    group has a signal and each reward is the lowest, or the entropy exploded or collapsed while the reward
    fell. A solved task has no signal either, but its rewards are high.
    """

    first_reward: float = -math.inf
    first_entropy: float | None = None
    lowest: float = math.inf
    hopeful: float = 0.0
    """Share of the groups of the newest trained step with a reward above the lowest."""
    rates: tuple[float, float] = (math.nan, math.nan)
    """Learning rate and that for the size, of that step."""
    trained_step: int = 0
    warned: bool = False

    def warn(self, info: TrainResultInfo, groups: Sequence[TrainGroup], model: str) -> None:
        """A line in the log, once, with the cause and what to do."""
        rewards = [[t.reward for t in group.trajectories if t.reward is not None] for group in groups]
        rewards = [some for some in rewards if some]
        if not rewards:
            return
        sign = None if self.warned else self._sign(info.metrics, rewards)
        if sign is not None:
            self.warned = True
            back = self.trained_step - 1
            fork = f", `await backend.fork_checkpoint(new, {model!r}, not_after_step={back})`"
            log.warning(
                "step %d of %s: %s. The policy has diverged. The usual cause is a learning rate that is too "
                "high: it was %.2g, the literature gives %.2g for this size. Register a new model%s and "
                "train it with a lower learning_rate, or with kl_penalty_coef. Said once",
                info.step,
                model,
                sign,
                *self.rates,
                fork if back > 0 else "",
            )
        self._remember(info, rewards)

    def _sign(self, metrics: Mapping[str, float], rewards: Sequence[Sequence[float]]) -> str | None:
        """Returns what shows a destroyed policy, or None."""
        mean = fmean(reward for some in rewards for reward in some)
        entropy, first, kl = metrics.get(ENTROPY), self.first_entropy, metrics.get(KL_TO_REFERENCE, 0.0)
        if entropy is None:
            highest = max(max(some) for some in rewards)
            if highest <= self.lowest and (1 - self.hopeful) ** len(rewards) < UNLIKELY:
                return (
                    f"after step {self.trained_step} each reward is the lowest ({highest:g}), in all groups"
                )
            return None
        if mean >= self.first_reward or first is None:
            return None
        if entropy > max(2 * first, first + ENTROPY_RISE):
            return f"the entropy rose from {first:.2g} to {entropy:.2g} nats a token, and the reward fell"
        if entropy < ENTROPY_LEFT * first:
            return f"the entropy fell from {first:.2g} to {entropy:.2g} nats a token, and so did the reward"
        if kl > FAR_FROM_REFERENCE:
            return f"the KL to the reference is {kl:.2g} nats a token, and the reward fell"
        return None

    def _remember(self, info: TrainResultInfo, rewards: Sequence[Sequence[float]]) -> None:
        if (entropy := info.metrics.get(ENTROPY)) is None:
            return
        if self.first_entropy is None:
            self.first_entropy, self.first_reward = entropy, fmean(one for some in rewards for one in some)
        self.lowest = min(self.lowest, *(min(some) for some in rewards))
        above = sum(max(some) > self.lowest for some in rewards)
        self.hopeful = min(above, len(rewards) - 0.5) / len(rewards)
        rate = info.metrics.get("loss/learning_rate", math.nan)
        self.rates, self.trained_step = (rate, info.metrics.get(RATE_BY_SIZE, math.nan)), info.step
