"""The request of a training job, and the check of what came of it.

trajectories       -> groups of the wire: names of rollouts, rewards, ids of samples, messages as JSON
keywords of train  -> algorithm, learning rate, optimizer, compute
the job's result   -> the balance sheet is held against what was sent, and warnings say what was not trained
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from art.backend import TrainOptions
from art.client.options.train_options import KEYWORDS, choose_algorithm, with_defaults
from art.client.requests.registration import model_settings, optimizer_spec
from art.errors import ConfigurationError, RolloutsFailedError, TokenMismatchError, UnbalancedSheetError
from art.trajectories import History, Trajectory, TrajectoryGroup, get_messages, is_choice
from art.types import Unscored, as_number, known_reward, sample_id, unscored_reason
from art.wire.algorithm import Algorithm
from art.wire.jobs import (
    IDENTICAL,
    JUDGE_PREFIX,
    ONE_SEED_GROUPS,
    BalanceSheet,
    GivenHistory,
    RateSpec,
    TrainGroup,
    TrainJobRequest,
    TrainResultInfo,
    TrainTrajectory,
)
from art.wire.rollout_record import RolloutFailure, RolloutNotes
from art.wire.rollouts import SAMPLE_FIELD
from art.wire.samples import UNTRAINABLE
from art.wire.training import RATE_BY_SIZE, ComputeSpec

if TYPE_CHECKING:
    from art.openai import MessagesAndChoices


def plain_messages(name: str, items: MessagesAndChoices) -> list[dict[str, Any]]:
    """A choice is the assistant message that it holds. `name`: whose they are.

    Raises ConfigurationError for what is no message, or cannot be sent.
    """
    messages: list[dict[str, Any]] = _as_json(name, get_messages(items))
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            raise ConfigurationError(f"{name}: message {number} is {message!r}, no message")
        if message.get("reasoning") and not message.get("reasoning_content"):
            message["reasoning_content"] = message.pop("reasoning")
    return messages


def plain_tools(name: str, tools: Sequence[Any] | None) -> list[dict[str, Any]] | None:
    """A bare function schema is wrapped as the API has it. Raises ConfigurationError."""
    return [_tool(one) for one in _as_json(name, list(tools))] if tools else None


def _as_json(name: str, value: Any) -> Any:
    """Messages may hold parts of `openai`'s replies as they came."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return to_jsonable_python(value, exclude_none=True)
    except PydanticSerializationError as error:
        raise ConfigurationError(f"{name} holds something that cannot be sent: {error}") from error


def _tool(tool: Any) -> Any:
    if isinstance(tool, dict) and "function" not in tool and "name" in tool:
        return {"type": "function", "function": tool}
    return tool


log = logging.getLogger(__name__)
ENTROPY, KL_TO_REFERENCE = "loss/entropy", "loss/kl_policy_ref"


def train_groups(
    groups: Iterable[Any], *, given: bool = False, after: Sequence[TrainGroup] = ()
) -> list[TrainGroup]:
    """Groups as the server wants them. None (a judge gave up on a group) is left out with a line in the log.

    given: what assistants say in dicts, and in choices without a sample, is trained as well. after: groups
    before these in the same job; no rollout gets a name of theirs.

    A reward that is NaN or infinite is none: the rollout is unscored, with a line in the log.

    Raises TokenMismatchError for a choice that no server of ours sampled, or one that appears twice in a
    trajectory, and ConfigurationError for a reward that is no number.
    """
    taken = {trajectory.rollout for group in after for trajectory in group.trajectories}
    wire: list[TrainGroup] = []
    odd: list[str] = []
    for g, group in enumerate(groups, len(after)):
        if group is None:
            log.warning("group %d is None and is left out: its judge or rollout gave no group", g)
            continue
        if not isinstance(group, TrajectoryGroup):
            raise TypeError(
                f"group {g} is a {type(group).__name__}, not a TrajectoryGroup: gather rollouts with "
                "art.gather_trajectory_groups, or put trajectories into art.TrajectoryGroup([...])"
            )
        trajectories = [
            _train_trajectory(
                trajectory,
                _rollout_name(trajectory, f"g{g}.t{t}", taken),
                given=given,
                scenario=trajectory.metadata.get("scenario_id", group.metadata.get("scenario_id")),
            )
            for t, trajectory in enumerate(group)
        ]
        wire.append(
            TrainGroup(
                trajectories=trajectories,
                failed=len(group.exceptions),
                failures=[
                    RolloutFailure(type=failure.type, message=failure.message) for failure in group.exceptions
                ],
                judge=_judge_figures(group),
            )
        )
        odd += [
            f"rollout {sent.rollout!r}: {sent.unscored_reason}"
            for one, sent in zip(group, trajectories, strict=True)
            if sent.reward is None and not isinstance(one.reward, Unscored)
        ]
    if odd:
        log.warning(
            "%d rollouts are unscored, the first is %s. Mend the reward function, or let it give "
            "art.Unscored(reason)",
            len(odd),
            odd[0],
        )
    return wire


def warn_edited(
    groups: Iterable[Any], is_edited: Callable[[Any], bool], model: str, warned: set[str]
) -> None:
    """A line in the log, once for each model, for choices whose text is not what was sampled any more.

    warned: the models of which it was said before; grows.
    """
    if model in warned:
        return
    places = [
        f"group {g}, trajectory {t}, turn {turn}"
        for g, group in enumerate(groups)
        for t, trajectory in enumerate(group or ())
        for history in (trajectory, *trajectory.additional_histories)
        for turn, item in enumerate(history.messages_and_choices)
        if is_choice(item) and is_edited(item)
    ]
    if not places:
        return
    warned.add(model)
    log.warning(
        "the text of a choice was edited after it was sampled: %s%s. Training uses the sampled tokens, not "
        "the edit. Append the choice as it came, and text of your own as a dict, which is context. Said once "
        "for %s",
        places[0],
        f" (and {len(places) - 1} more)" if len(places) > 1 else "",
        model,
    )


def check_any_trajectory(groups: Sequence[Any]) -> None:
    """Raises ConfigurationError where there is no group, and RolloutsFailedError where there are failed
    rollouts and none that gave a trajectory: nothing was learned, and the next step would fail likewise.
    """
    if not groups:
        raise ConfigurationError(
            "train() was given no groups: there is nothing to train, and no step is made. If a judge or a "
            "filter may leave none, skip the step: `if groups: await model.train(groups)`"
        )
    given = [group for group in groups if isinstance(group, TrajectoryGroup)]
    failures = [failure for group in given for failure in group.exceptions]
    if not failures or any(group.trajectories for group in given):
        return
    first = failures[0]
    raise RolloutsFailedError(
        f"each of the {len(failures)} rollouts failed: there is nothing to train, and no step is made. The "
        f"first one's {first.type}: {first.message}\n{first.traceback}".rstrip()
    )


def _judge_figures(group: TrajectoryGroup) -> dict[str, float]:
    """Returns the judge's figures in the group's metrics; the step's record keeps them."""
    found = {
        name: float(value)
        for name, value in group.metrics.items()
        if name.startswith(JUDGE_PREFIX) and value is not None
    }
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _rollout_name(trajectory: Trajectory, fallback: str, taken: set[str]) -> str:
    """The rollout's id; where one rollout gave several trajectories, their place in the batch tells them
    apart.
    """
    name = trajectory.rollout_id or fallback
    if name in taken:
        name = f"{name}.{fallback}"
    taken.add(name)
    return name


def _train_trajectory(
    trajectory: Trajectory, rollout: str, *, given: bool, scenario: object
) -> TrainTrajectory:
    for name, value in trajectory.metrics.items():  # the log would refuse it, after the step
        if value is not None:
            as_number(name, value, f"rollout {rollout!r}")
    samples = list(_samples(trajectory, rollout, given=given))
    return TrainTrajectory(
        rollout=rollout,
        reward=_reward(trajectory, rollout),
        unscored_reason=unscored_reason(trajectory),
        samples=[one.sample for one in samples],
        given=_given_histories(trajectory, rollout, samples) if given else [],
        notes=_notes(trajectory, scenario),
    )


def _notes(trajectory: Trajectory, scenario: object) -> RolloutNotes:
    """The part of the step's record that only this program knows."""
    seconds = trajectory.metrics.get("duration")
    return RolloutNotes(
        scenario=None if scenario is None else str(scenario),
        reward_parts={name: value for name, value in trajectory.metrics.items() if value is not None},
        judge=trajectory._judge,
        started_at=trajectory.start_time.timestamp(),
        seconds=None if seconds is None else float(seconds),
    )


def _given_histories(trajectory: Trajectory, rollout: str, samples: list[_Sampled]) -> list[GivenHistory]:
    """All histories with their messages, if anything that the assistant says in them was not sampled."""
    sources: list[Trajectory | History] = [trajectory, *trajectory.additional_histories]
    histories = [
        GivenHistory(
            messages=plain_messages(f"rollout {rollout!r}", history.messages_and_choices),
            tools=plain_tools(f"rollout {rollout!r}", history.tools),
            samples={one.turn: one.sample for one in samples if one.history == number},
        )
        for number, history in enumerate(sources)
    ]
    answers = sum(message.get("role") == "assistant" for one in histories for message in one.messages)
    return histories if answers > len(samples) else []


def _reward(trajectory: Trajectory, rollout: str) -> float | None:
    if not isinstance(trajectory.reward, Unscored):
        as_number("reward", trajectory.reward, f"rollout {rollout!r}")  # refused with the rollout's name
    return known_reward(trajectory)


class _Sampled(NamedTuple):
    """A choice that names its sample, and where it is."""

    history: int
    turn: int
    sample: str


def _samples(trajectory: Trajectory, rollout: str, *, given: bool) -> Iterator[_Sampled]:
    seen: dict[str, str] = {}
    further = [history.messages_and_choices for history in trajectory.additional_histories]
    histories = [trajectory.messages_and_choices, *further]
    for h, history in enumerate(histories):
        for turn, item in enumerate(history):
            if not is_choice(item):
                continue
            place = f"turn {turn}" + (f" of additional history {h - 1}" if h else "")
            sample = sample_id(item)
            if sample is None:
                if given:
                    continue
                raise TokenMismatchError(
                    f"rollout {rollout!r}, {place}: no {SAMPLE_FIELD!r} in this choice: its tokens are lost. "
                    f"Append `completion.choices[0]` as `model.openai_client()` gave it; a reply of another "
                    f"model belongs into the messages as a dict (context, not trained), or is trained with "
                    f"allow_training_without_logprobs=True"
                )
            if sample in seen:
                raise TokenMismatchError(
                    f"rollout {rollout!r}, {place}: sample {sample!r} is already there ({seen[sample]}) and "
                    f"would count twice; keep each choice in one history, and where it is context, a dict"
                )
            seen[sample] = place
            yield _Sampled(h, turn, sample)


UNSAID_ROWS: int = KEYWORDS["logprob_calculation_chunk_size"].default
"""The default of logprob_calculation_chunk_size, which leaves the rows of logits to the trainer."""


def job_request(
    job_id: str,
    groups: list[TrainGroup],
    discarded: list[TrainGroup],
    internal_config: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> TrainJobRequest:
    """The job that the keywords describe. Raises ConfigurationError."""
    chosen = with_defaults(options)
    return TrainJobRequest(
        job_id=job_id,
        groups=groups,
        algorithm=choose_algorithm(chosen),
        optimizer=optimizer_spec(chosen["learning_rate"], internal_config, chosen["adam_params"]),
        rate=rate_of(chosen),
        compute=compute_of(chosen, internal_config),
        expected_step=chosen["expected_step"],
        max_steps_off_policy=chosen["max_steps_off_policy"],
        discarded=discarded,
    )


def algorithm_of(options: Mapping[str, Any]) -> Algorithm:
    """The algorithm that the keywords describe; keywords of other matters are left alone."""
    return choose_algorithm(with_defaults(options))


def rate_of(options: TrainOptions) -> RateSpec:
    """Returns the factor of the learning rate."""
    return RateSpec(
        rollouts_power=options["num_trajectories_learning_rate_multiplier_power"],
        by_reward_std=options["scale_learning_rate_by_reward_std_dev"],
    )


def compute_of(options: TrainOptions, internal_config: Mapping[str, Any] | None) -> ComputeSpec:
    """Returns how the step is computed. Raises ConfigurationError for a length that no sample of the model
    can have.
    """
    length, rows = options["packed_sequence_length"], options["logprob_calculation_chunk_size"]
    longest = model_settings(internal_config, log=False).max_context
    if length is not None and longest is not None and length > longest:
        raise ConfigurationError(
            f"train(packed_sequence_length={length!r}) is more than the {longest} tokens that the model's "
            "max_seq_length allows"
        )
    return ComputeSpec(
        max_length=length,
        logit_rows=None if rows == UNSAID_ROWS else rows,
        plot=options["plot_tensors"],
        record_tokens=options["record_tokens"],
    )


LOW_RATE_FACTOR = 20.0
HIGH_RATE_FACTOR = 50.0
"""A learning rate so many times below or above the one for the model's size is told of: tasks differ by less.
"""

REASONS_UNTRAINED = {
    "no_samples": "no reply to learn from: append completion.choices[0] to messages_and_choices, or set "
    "allow_training_without_logprobs=True to train on dicts",
    "zero_advantage": "all rewards in each group are equal, so there is no gradient",
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
