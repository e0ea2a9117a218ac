"""The request of a training job.

trajectories       -> groups of the wire: names of rollouts, rewards, ids of samples, messages as JSON
keywords of train  -> algorithm, learning rate, optimizer, compute
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from art.backend import TrainOptions
from art.client.options.train_options import KEYWORDS, choose_algorithm, with_defaults
from art.client.requests.registration import model_settings, optimizer_spec
from art.errors import ConfigurationError, RolloutsFailedError, TokenMismatchError
from art.trajectories import History, Trajectory, TrajectoryGroup, get_messages, is_choice
from art.types import Unscored, as_number, check_message, known_reward, sample_id, unscored_reason
from art.wire.algorithm import Algorithm
from art.wire.jobs import (
    JUDGE_PREFIX,
    GivenHistory,
    RateSpec,
    TrainGroup,
    TrainJobRequest,
    TrainTrajectory,
)
from art.wire.rollout_record import RolloutFailure, RolloutNotes
from art.wire.rollouts import SAMPLE_FIELD
from art.wire.training import ComputeSpec

if TYPE_CHECKING:
    from art.openai import MessagesAndChoices

T = TypeVar("T")


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


def train_groups(
    groups: Iterable[Any],
    *,
    given: bool = False,
    after: Sequence[TrainGroup] = (),
    reward_parts: Iterable[str] = (),
    replaced: bool = False,
) -> list[TrainGroup]:
    """Groups as the server wants them. None (a judge gave up on a group) is left out with a line in the log.

    given: what assistants say in dicts, and in choices without a sample, is trained as well. after: groups
    before these in the same job; no rollout gets a name of theirs. reward_parts: metrics that the algorithm
    takes as parts of the reward. replaced: others were rolled out in the place of these.

    A reward that is NaN or infinite is none, also of a turn: the rollout is unscored, with a line in the
    log. So is one that has none of its parts.

    Raises TokenMismatchError for a choice that no server of ours sampled, or one that appears twice in a
    trajectory, and ConfigurationError for a reward that is no number.
    """
    taken = {trajectory.rollout for group in after for trajectory in group.trajectories}
    wire: list[TrainGroup] = []
    odd: list[str] = []
    names = tuple(reward_parts)
    for g, group in enumerate(groups, len(after)):
        if group is None:
            log.warning("group %d is None and is left out: its judge or rollout gave no group", g)
            continue
        if not isinstance(group, TrajectoryGroup):
            raise TypeError(
                f"group {g} is a {type(group).__name__}, not a TrajectoryGroup: gather rollouts with "
                "art.gather_trajectory_groups, or put trajectories into art.TrajectoryGroup([...]); one "
                "group alone is given in a list, [group]"
            )
        trajectories = [
            _train_trajectory(
                trajectory,
                _rollout_name(trajectory, f"g{g}.t{t}", taken),
                given=given,
                parts=names,
                scenario=trajectory.metadata.get("scenario_id", group.metadata.get("scenario_id")),
            )
            for t, trajectory in enumerate(group)
        ]
        wire.append(_train_group(group, trajectories, replaced=replaced))
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


def _train_group(group: TrajectoryGroup, sent: list[TrainTrajectory], *, replaced: bool) -> TrainGroup:
    return TrainGroup(
        trajectories=sent,
        failed=len(group.exceptions),
        failures=[RolloutFailure(type=one.type, message=one.message) for one in group.exceptions],
        judge=_judge_figures(group),
        weight=group.weight,
        replaced=replaced,
    )


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
    return _finite(group.metrics, [name for name in group.metrics if name.startswith(JUDGE_PREFIX)])


def _finite(numbers: Mapping[str, Any], names: Iterable[str] | None = None) -> dict[str, float]:
    """Returns those of these names, or all, that are finite numbers."""
    given = {name: numbers.get(name) for name in (numbers if names is None else names)}
    found = {name: as_number(name, value) for name, value in given.items() if value is not None}
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
    trajectory: Trajectory, rollout: str, *, given: bool, parts: Sequence[str], scenario: object
) -> TrainTrajectory:
    for name, value in trajectory.metrics.items():  # the log would refuse it, after the step
        if value is not None:
            as_number(name, value, f"rollout {rollout!r}")
    samples = list(_samples(trajectory, rollout, given=given))
    reward, reason = _reward(trajectory, rollout), unscored_reason(trajectory)
    of_reward = _finite(trajectory.metrics, parts)
    if parts and not of_reward and reward is not None:
        reward, reason = None, f"none of the parts of its reward is a finite number: {', '.join(parts)}"
    return TrainTrajectory(
        rollout=rollout,
        reward=reward,
        unscored_reason=reason,
        parts=of_reward,
        samples=[one.sample for one in samples],
        turn_rewards=_of_turns("turn_rewards", _finite(trajectory.turn_rewards), rollout, samples),
        turn_values=_of_turns("turn_values", _finite(trajectory.turn_values), rollout, samples),
        turn_states=_of_turns("turn_states", trajectory.turn_states, rollout, samples),
        given=_given_histories(trajectory, rollout, samples) if given else [],
        notes=_notes(trajectory, scenario, samples),
    )


def _of_turns(name: str, found: Mapping[str, T], rollout: str, samples: Sequence[_Sampled]) -> dict[str, T]:
    unknown = found.keys() - {one.sample for one in samples}
    if unknown:
        raise ConfigurationError(
            f"rollout {rollout!r}: {name} names {min(unknown)!r}, which is no turn of it; use "
            "`trajectory.reward_turn(choice, reward)`"
        )
    return dict(found)


def _notes(trajectory: Trajectory, scenario: object, samples: Sequence[_Sampled]) -> RolloutNotes:
    """The part of the step's record that only this program knows."""
    seconds = trajectory.metrics.get("duration")
    return RolloutNotes(
        scenario=None if scenario is None else str(scenario),
        reward_parts={n: as_number(n, v) for n, v in trajectory.metrics.items() if v is not None},
        judge=trajectory._judge,
        started_at=trajectory.start_time.timestamp(),
        seconds=None if seconds is None else float(seconds),
        turn_reasons={
            one.sample: why for one in samples if (why := trajectory.turn_reasons.get(one.sample)) is not None
        },
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
                check_message(item)
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
        optimizer=optimizer_spec(
            chosen["learning_rate"], internal_config, chosen["adam_params"], chosen["optimizer"]
        ),
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
