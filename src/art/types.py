"""Small records of the user's vocabulary: what a reward may be, how to train, what training returned.

And the items of a conversation: choices, which were sampled, and messages, which are context; and a
conversation as HTML for notebooks. Last, what messages say of a value that is none of these.
"""

from __future__ import annotations

import asyncio
import math
import reprlib
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from html import escape
from importlib import import_module
from inspect import isawaitable, iscoroutine
from statistics import fmean, pstdev
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, cast

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, ValidationInfo, model_validator

from art.errors import ConfigurationError, did_you_mean
from art.process.imports import import_lock
from art.wire.algorithm import Algorithm
from art.wire.jobs import BalanceSheet
from art.wire.rollouts import CALL_NOTE, SAMPLE_FIELD, STEP_FIELD, TOKENS_FIELD, ObservedCompletion

if TYPE_CHECKING:
    from art.openai import Choice as Choice
    from art.openai import Message as Message
    from art.openai import MessageOrChoice as MessageOrChoice
    from art.openai import Messages as Messages
    from art.openai import MessagesAndChoices as MessagesAndChoices
    from art.openai import Tools as Tools


Verbosity = Literal[0, 1, 2]

_CHAT_WORDS = frozenset({"Choice", "Message", "MessageOrChoice", "Messages", "MessagesAndChoices", "Tools"})


@dataclass(frozen=True)
class Unscored:
    """A missing reward and its reason: the judge, tool or sandbox failed.

    It leaves the group's statistics and the loss; it never counts as reward 0.
    """

    reason: str


class LoRAConfig(TypedDict, total=False):
    """`TrainableModel(lora_config=...)`: the shape of the adapter. Every name may be left out."""

    rank: int
    alpha: int
    dropout: float
    target_modules: list[str]
    use_rslora: bool
    random_state: int
    bias: str
    init_weights: bool
    layers_to_transform: list[int] | None
    layers_pattern: str | None
    modules_to_save: list[str] | None
    loftq_config: dict[str, Any] | None
    max_seq_length: int
    use_gradient_checkpointing: str
    temporary_location: str


_PEFT_NAMES: Mapping[str, str] = MappingProxyType(
    {"rank": "r", "alpha": "lora_alpha", "dropout": "lora_dropout", "init_weights": "init_lora_weights"}
)


def peft_arguments(lora_config: Mapping[str, Any]) -> dict[str, Any]:
    """The same by PEFT's names, as `_internal_config["peft_args"]` has them.

    Raises ConfigurationError for a name that is none of `LoRAConfig`.
    """
    for name in lora_config:
        if name not in LoRAConfig.__annotations__:
            hint = did_you_mean(name, LoRAConfig.__annotations__)
            known = ", ".join(LoRAConfig.__annotations__)
            raise ConfigurationError(f"lora_config has no {name!r}{hint and f', {hint}'}; it has {known}")
    return {_PEFT_NAMES.get(name, name): value for name, value in lora_config.items()}


class TrainConfig(BaseModel):
    """The options of one call of `model.train`. `beta` is the older name of `kl_penalty_coef`."""

    model_config = ConfigDict(extra="forbid")

    learning_rate: Annotated[float, Field(gt=0)] | None = 5e-6
    """None: what the literature gives for the model's size."""
    algorithm: str | dict[str, Any] | InstanceOf[Algorithm] | None = None
    """A name of `art.batch.algorithms`, a dict of a name and parts, or an `art.Algorithm`. None: `art`."""
    kl_penalty_coef: float = Field(default=0.0, ge=0)
    kl_penalty_source: Literal["current_learner", "sample"] = "current_learner"
    grad_accumulation_sequences: int | None = Field(default=None, ge=1)
    optimizer_save_interval: int = Field(default=5, ge=1)
    final_training_step: int | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _translate_beta(cls, data: Any) -> Any:
        if isinstance(data, dict) and "beta" in data:
            data = dict(data)
            data.setdefault("kl_penalty_coef", data.pop("beta"))
        rest = ". Further keywords of `train` go beside the config, or into `_config`."
        return _without_unknown_fields(cls, data, rest)

    def keywords(self) -> dict[str, Any]:
        """Returns the values that differ from the defaults, as keywords of a backend's `train`."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return {
            name: value for name, value in values.items() if value != type(self).model_fields[name].default
        }


def check_call_config(config: object, expected: type[BaseModel]) -> None:
    """Raises TypeError where `config` of a training call is neither None nor of the expected class."""
    if config is None or isinstance(config, expected):
        return
    fields = ", ".join(f"{n}={v!r}" for n, v in config.items()) if isinstance(config, Mapping) else "..."
    raise TypeError(f"config is {kind_of(config)}: write config=art.{expected.__name__}({fields})")


class TrainSFTConfig(BaseModel):
    """The options of one call of `model.train_sft`.

    learning_rate: one for all batches, or a list with one for each. batch_size: trajectories of one update;
    "auto" leaves it to the backend (2). assistant_turns: "last" makes all assistant messages but a
    conversation's last one context.
    """

    model_config = ConfigDict(extra="forbid")

    learning_rate: float | list[float] = 5e-5
    batch_size: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    assistant_turns: Literal["all", "last"] = "all"

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, data: Any) -> Any:
        return _without_unknown_fields(cls, data, "")


def _without_unknown_fields(cls: type[BaseModel], data: Any, rest: str) -> Any:
    """Returns the data. Raises ConfigurationError for a field that the class has not; `rest` ends it."""
    for name in data if isinstance(data, dict) else ():
        if name not in cls.model_fields:
            hint = did_you_mean(name, cls.model_fields)
            raise ConfigurationError(
                f"{cls.__name__}({name}={data[name]!r}): no such field{hint and f', {hint}'}; "
                f"known: {', '.join(cls.model_fields)}{rest}"
            )
    return data


@dataclass
class TrainResult:
    """The result of a training step.

    step: the step that now exists and is served. metrics: means of the step, with the sheet as
    `data/sheet/<fate>_rollouts` and `data/sheet/<fate>_tokens`. sheet: where every rollout of the step went.
    """

    step: int
    metrics: dict[str, float] = field(default_factory=dict)
    sheet: BalanceSheet | None = field(default=None, kw_only=True)
    checkpoint_path: str | None = field(default=None, kw_only=True)


@dataclass
class LocalTrainResult(TrainResult):
    """The result of a `LocalBackend`: `checkpoint_path` is a folder on this machine."""

    checkpoint_path: str | None = None
    checkpoint_ready: Awaitable[None] | None = field(default=None, kw_only=True)
    """None: the checkpoint is complete when the step is. Newer programs await what stands here."""


@dataclass
class ServerlessTrainResult(TrainResult):
    """The result of a `ServerlessBackend`: `artifact_name` is the service's name of the new checkpoint."""

    artifact_name: str | None = None


def __getattr__(name: str) -> Any:
    """The chat words are re-exported; they cost the import of `openai`, so only on first use."""
    if name in _CHAT_WORDS:
        return getattr(import_module("art.openai"), name)
    raise AttributeError(f"module 'art.types' has no attribute {name!r}")


def is_choice(item: Any) -> bool:
    """A turn that was sampled (a `Choice`, also one dumped to a dict), as opposed to a message of the
    context (a dict, or a message object of `openai`).
    """
    if isinstance(item, dict):
        return "finish_reason" in item and "message" in item
    return hasattr(item, "finish_reason") and hasattr(item, "message")


def sample_id(choice: Any) -> str | None:
    """Returns the id of a choice's sample, or None."""
    fields = (
        choice if isinstance(choice, dict) else vars(choice) | (getattr(choice, "model_extra", None) or {})
    )
    # litellm keeps the fields that it does not know in a dict of its own.
    known = {**(fields.get("provider_specific_fields") or {}), **fields}
    found = known.get(SAMPLE_FIELD)
    return found if isinstance(found, str) and found else None


def sampled_step(choice: Any) -> int | None:
    """Returns the step of the adapter that a choice was sampled with, or None."""
    step = getattr(choice, STEP_FIELD, None)
    return step if isinstance(step, int) else None


def sampled_tokens(choice: Any) -> int | None:
    """Returns how many tokens of a choice were sampled; None where it does not say."""
    logprobs = getattr(choice, "logprobs", None)
    if logprobs is not None and logprobs.content is not None:
        return len(logprobs.content)
    counted = getattr(choice, TOKENS_FIELD, None)
    return counted if isinstance(counted, int) else None


def completion_call(choice: Any) -> ObservedCompletion:
    """Returns what the client noted of a choice's completion, to be read and added to; {} without a note."""
    found = getattr(choice, CALL_NOTE, None)
    return cast("ObservedCompletion", found) if isinstance(found, dict) else {}


SHOW = "show"
"""The key of a trajectory's metadata with the rollout as a few lines of plain text, for people."""


@dataclass(frozen=True, kw_only=True)
class JudgeCall:
    """One question to a judge, with the attempts at it. Times are Unix seconds."""

    source: str
    """`judge/<name of the reward>`."""
    model: str
    started_at: float
    ended_at: float
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float | None = None
    cached: bool = False
    """The answer was kept, or came with an equal question under way: it cost nothing."""
    finish_reason: str | None = None
    error: str | None = None
    """The class of the error, where there was no answer."""
    messages: tuple[Mapping[str, Any], ...] = ()
    """The question, where the content of messages may be sent to a tracker."""
    text: str | None = None
    """The answer, likewise."""


_JUDGE_CALLS: ContextVar[list[JudgeCall] | None] = ContextVar("art_judge_calls", default=None)


@contextmanager
def hearing_judges() -> Iterator[list[JudgeCall]]:
    """Fills a list with the questions to judges that are asked inside, in the order of their answers."""
    calls: list[JudgeCall] = []
    token = _JUDGE_CALLS.set(calls)
    try:
        yield calls
    finally:
        _JUDGE_CALLS.reset(token)


def heard_judges() -> list[JudgeCall] | None:
    """Returns the list that questions asked here go into, or None."""
    return _JUDGE_CALLS.get()


def get_messages(messages_and_choices: MessagesAndChoices) -> Messages:
    """Returns plain messages: a choice becomes its assistant message, a missing content becomes the empty
    text.
    """
    return [_message(item) for item in messages_and_choices]


def check_message(item: Any) -> None:
    """Raises TypeError for a whole completion, and for what is no message at all: text, None, a list."""
    if hasattr(item, "choices"):
        remedy = "append `completion.choices[0]`"
    elif isinstance(item, BaseModel | Mapping):
        return
    else:
        remedy = "append a dict such as {'role': 'user', 'content': ...}, or `completion.choices[0]`"
    raise TypeError(f"messages_and_choices has {kind_of(item)}, which is no message: {remedy}")


def _message(item: MessageOrChoice) -> Any:
    if not is_choice(item):
        check_message(item)
        plain = item.model_dump(mode="json", exclude_unset=True) if isinstance(item, BaseModel) else item
        message = dict(cast("dict[str, Any]", plain))
        if "content" in message and message["content"] is None:
            message["content"] = ""
        return message
    said = cast("dict[str, Any]", item)["message"] if isinstance(item, dict) else cast(Any, item).message
    dumped = dict(said) if isinstance(said, dict) else said.model_dump(mode="json", exclude_none=True)
    reply = {"role": "assistant", "content": dumped.get("content") or ""}
    # Templates of reasoning models read these back; a template that does not know them ignores them.
    extras = ("tool_calls", "reasoning_content", "reasoning", "refusal", "function_call")
    return reply | {key: dumped[key] for key in extras if dumped.get(key)}


def revive_choices(items: Any) -> Any:
    """Converts choices that were dumped to JSON back to choices, so that a trajectory survives a round
    trip.
    """
    if not isinstance(items, list) or not any(isinstance(item, dict) and is_choice(item) for item in items):
        return items
    with import_lock:
        from openai.types.chat.chat_completion import Choice

    return [
        Choice.construct(**item) if isinstance(item, dict) and is_choice(item) else item for item in items
    ]


def choices_of_json(items: Any, info: ValidationInfo) -> Any:
    """Converts choices in fields of turns from JSON; a program's own dicts are not changed."""
    return revive_choices(items) if info.mode == "json" else items


def as_number(name: str, value: Any, whose: str = "a rollout") -> float:
    """Returns a rollout's reward or metric as a float; True is 1. Raises ConfigurationError for text and for
    all else that is no number.
    """
    if not isinstance(value, str | bytes):
        with suppress(TypeError, ValueError, OverflowError):
            return float(value)
    if isinstance(value, int):  # of 309 digits
        return math.inf if value > 0 else -math.inf
    if isawaitable(value):
        remedy = "write `await` before the call that made it"
    elif name == "reward":
        remedy = "set a number, or art.Unscored(reason) if it is unknown"
    else:
        remedy = "set a number; text goes into `metadata`"
    named = "the reward" if name == "reward" else f"metric {name!r}"
    raise ConfigurationError(f"{named} of {whose} is {kind_of(value)}, not a number: {remedy}")


LARGEST_REWARDS = 1e37
"""What the rewards and values of a rollout may add up to: differences of such sums fit into a float32."""


def known_reward(trajectory: Any) -> float | None:
    """Returns a trajectory's reward; None where it is unscored. NaN and infinity are no reward: a mean of
    nothing or a division by zero says nothing of the rollout. The same holds for those of its turns.

    Raises ConfigurationError for what is no number.
    """
    if isinstance(trajectory.reward, Unscored) or _not_finite(trajectory) is not None:
        return None
    return as_number("reward", trajectory.reward)


def unscored_reason(trajectory: Any) -> str | None:
    """Returns why `known_reward` knows none; None where it knows one."""
    return trajectory.reward.reason if isinstance(trajectory.reward, Unscored) else _not_finite(trajectory)


def _not_finite(trajectory: Any) -> str | None:
    """Says which number of a scored trajectory is not finite, or that they are too large: estimators add them
    up, and compare the sums of several rollouts in the trainer's float32.
    """
    numbers = {"the reward": as_number("reward", trajectory.reward)}
    for name, of_turns in (("reward", trajectory.turn_rewards), ("value", trajectory.turn_values)):
        for sample, value in of_turns.items():
            numbers[f"the {name} of turn {sample!r}"] = as_number("reward", value, f"turn {sample!r}")
    for name, value in numbers.items():
        if not math.isfinite(value):
            return f"{name} is {value!r}, not a finite number"
    if sum(map(abs, numbers.values())) > LARGEST_REWARDS:
        return f"its rewards and values add up to more than {LARGEST_REWARDS:g}"
    return None


def function_name(work: Any) -> str:
    """Returns the function that a coroutine or task runs, as `play()`, or "a rollout" if it has no name."""
    coroutine = work.get_coro() if isinstance(work, asyncio.Task) else work
    name = getattr(coroutine, "__qualname__", "") if isawaitable(work) else ""
    return f"{name.rpartition('<locals>.')[2]}()" if name else "a rollout"


def kind_of(value: Any) -> str:
    """Returns the type of a value for messages, and text and numbers themselves: "a tuple", "'good', a str",
    "None".
    """
    name = type(value).__name__
    kind = "None" if value is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
    return f"{reprlib.repr(value)}, {kind}" if isinstance(value, str | bytes | int | float) else kind


def no_trajectory(value: Any, function: str, wanted: str = "a Trajectory") -> TypeError:
    """Returns the error of a rollout that gave something else: the type and the remedy, never the value,
    which may be long.
    """
    if isawaitable(value):
        if iscoroutine(value):
            value.close()  # Python would report it as never awaited
        remedy = ": write `await` before the call that it returns"
    elif value is None:
        remedy = ": end it with `return trajectory`"
    elif callable(value):
        remedy = ": call the function"
    elif isinstance(value, tuple | list):
        remedy = ": return the Trajectory alone, and put further values into its `metrics` or `metadata`"
    else:
        remedy = ""
    return TypeError(f"{function} returned {kind_of(value)}, not {wanted}{remedy}")


SHOWN_CHARS = 4000
"""The limit in characters of one text in a notebook: a page with a hundred long rollouts stays usable."""
_HTML_CLASSES = "art-rollout tex2jax_ignore mathjax_ignore"
"""Notebooks set $...$ as mathematics, links included, except in these classes."""


def html_text(value: Any) -> str:
    """Returns text for HTML: escaped, long text cut, and what no page may contain shown as "\ufffd"."""
    text = str(value)
    left_out = len(text) - SHOWN_CHARS
    text = text if left_out <= 0 else f"{text[:SHOWN_CHARS]}\n... {left_out} more characters"
    shown = "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
    return escape(shown, quote=True)


def text_of_content(content: Any) -> str:
    """Returns the text of a message's content; parts that are no text (images) stand in brackets."""
    if not isinstance(content, list | tuple):
        return "" if content is None else str(content)
    parts = [part if isinstance(part, Mapping) else {"text": part} for part in content]
    return "\n".join(
        str(part["text"]) if "text" in part else f"[{part.get('type', 'part')}]" for part in parts
    )


def _facts_html(facts: Mapping[str, Any]) -> str:
    """Returns a line for each fact that has a value."""
    return "".join(
        f"<div><b>{html_text(name)}</b> {html_text(value)}</div>" for name, value in facts.items() if value
    )


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def rollout_line(trajectory: Any) -> str:
    """Returns a trajectory in one line: Trajectory(3 turns, reward 0.75, finish stop)."""
    choices = [item for item in trajectory.messages_and_choices if is_choice(item)]
    facts = [_counted(len(choices), "turn", "turns")]
    if isinstance(trajectory.reward, Unscored):
        facts.append(f"unscored: {reprlib.repr(trajectory.reward.reason)}")
    else:
        facts.append(f"reward {trajectory.reward:.4g}" if _is_number(trajectory.reward) else "no reward")
    if choices:
        last = choices[-1]
        facts.append(f"finish {last['finish_reason'] if isinstance(last, dict) else last.finish_reason}")
    if trajectory.additional_histories:
        facts.append(_counted(len(trajectory.additional_histories), "further history", "further histories"))
    return f"{type(trajectory).__name__}({', '.join(facts)})"


def rollout_html(trajectory: Any) -> str:
    """Returns a trajectory as a block of HTML that opens with a click. Everything in it is escaped."""
    rows = []
    for message in trajectory.messages():
        calls = [call.get("function") or {} for call in message.get("tool_calls") or ()]
        said = [message.get("reasoning_content"), text_of_content(message.get("content"))]
        said += [f"{call.get('name')}({call.get('arguments')})" for call in calls]
        text = "\n".join(str(one) for one in said if one)
        rows.append(
            f"<div><b>{html_text(message.get('role'))}</b>"
            f'<pre style="white-space:pre-wrap;unicode-bidi:isolate">{html_text(text)}</pre></div>'
        )
    facts = {"metrics": trajectory.metrics, "metadata": trajectory.metadata, "logs": trajectory.logs}
    return (
        f'<details class="{_HTML_CLASSES}"><summary>{html_text(rollout_line(trajectory))}</summary>'
        f"{''.join(rows)}{_facts_html(facts)}</details>"
    )


def group_line(group: Any) -> str:
    """Returns a group in one line: TrajectoryGroup(8 trajectories, reward 0.62 ± 0.18, 1 exception).

    The number after ± is the standard deviation of the rewards.
    """
    rewards = [float(one.reward) for one in group.trajectories if _is_number(one.reward)]
    facts = [_counted(len(group.trajectories), "trajectory", "trajectories")]
    if rewards:
        facts.append(f"reward {fmean(rewards):.4g} ± {pstdev(rewards):.4g}")
    if unscored := len(group.trajectories) - len(rewards):
        facts.append(f"{unscored} unscored")
    if group.exceptions:
        facts.append(_counted(len(group.exceptions), "exception", "exceptions"))
    return f"{type(group).__name__}({', '.join(facts)})"


def group_html(group: Any) -> str:
    """Returns a group as HTML: a line for each rollout, which opens with a click."""
    failures = [f"{error.type}: {error.message}" for error in group.exceptions]
    facts = {"metadata": group.metadata, "metrics": group.metrics, "logs": group.logs, "failed": failures}
    rollouts = "".join(rollout_html(one) for one in group.trajectories)
    heading = html_text(group_line(group))
    return f'<div class="{_HTML_CLASSES}"><p>{heading}</p>{rollouts}{_facts_html(facts)}</div>'
