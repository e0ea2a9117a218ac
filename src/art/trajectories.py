"""The record of what an agent did: trajectories, the groups they are compared in, and further histories.

A `TrajectoryGroup` of coroutines is an awaitable that runs them side by side, and leaves none behind,
whatever happens to its siblings.
"""

from __future__ import annotations

import asyncio
import math
import time
import traceback as tracebacks
import warnings
from collections.abc import AsyncIterator, Awaitable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from datetime import datetime
from functools import lru_cache
from importlib import import_module
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from uuid import uuid4

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    PrivateAttr,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from art.compat.deferred_method import DeferredMethod
from art.errors import ConfigurationError, did_you_mean
from art.exchanges import TrajectoryExchanges
from art.gather_context import GatherContext, get_gather_context
from art.history import History as History
from art.history import MessagesAndChoices as MessagesAndChoices
from art.history import Tools as Tools
from art.rollout_tasks import (
    close_unstarted,
    current_rollout,
    in_rollout,
    rollout_scope,
    run_side_by_side,
    task_failure,
)
from art.types import (
    JudgeCall,
    Unscored,
    as_number,
    choices_of_json,
    function_name,
    group_html,
    group_line,
    kind_of,
    known_reward,
    no_trajectory,
    rollout_html,
    rollout_line,
    sample_id,
    sampled_step,
    sampled_tokens,
    text_of_content,
)
from art.types import get_messages as get_messages
from art.types import is_choice as is_choice
from art.wire.jobs import Weight

if TYPE_CHECKING:
    from types import TracebackType

    from art.openai import MessageOrChoice, Messages
    from art.wire.rollout_record import JudgeNote

T = TypeVar("T")
MetadataValue = Any
"""Logs keep what JSON can say as it is, and show other values as text."""

_VIEWS = "art_extensions.token_views"
FROM_EXCHANGES = ("messages_and_choices", "tools", "additional_histories")
"""The fields that follow from the recorded calls."""


@lru_cache(maxsize=1024)
def _tell_unknown_field(cls: type[BaseModel], name: str) -> None:
    """Raises an error for a field that `Trajectory` does not have. A class of a program's own ignores it with
    a warning: published programs give theirs what they do not declare.
    """
    known = list(cls.model_fields)
    for one in cls.model_fields.values():
        known += [alias for alias in (one.alias, one.validation_alias) if isinstance(alias, str)]
    if name in known:
        return
    guess = did_you_mean(name, known, likeness=0.75)
    hint = f", {guess}" if guess else "; to keep it, use `metadata` or a subclass with this field"
    if cls is Trajectory:
        raise ConfigurationError(f"Trajectory({name}=...): no such field{hint}")
    message = f"{cls.__name__}({name}=...) is ignored: no such field{hint}"
    warnings.warn(message, UserWarning, stacklevel=4)  # above the validator and pydantic's constructor


class Trajectory(BaseModel):
    """The record of one rollout: its messages and its reward.

    A `Choice` in `messages_and_choices` is a turn that is trained, a dict is context. Example: a system
    message, a user message and `completion.choices[0]`, with `reward=1.0`. `with art.Trajectory() as t:`
    records the calls that are made inside as `exchanges`, and fills these fields from them. Subclasses may
    add fields; an unknown field raises an error, and one of a subclass a warning.
    """

    messages_and_choices: MessagesAndChoices = []
    tools: Tools | None = None
    additional_histories: list[History] = []
    exchanges: TrajectoryExchanges = Field(default_factory=TrajectoryExchanges)
    """The calls that were recorded. A dump has them in place of the conversations, which follow from them."""
    reward: float | Unscored = 0.0
    initial_policy_version: int | None = None
    final_policy_version: int | None = None
    turn_rewards: dict[str, FiniteFloat] = {}
    """Sample -> what its turn earned of `reward`; the last turn earned the rest."""
    turn_values: dict[str, FiniteFloat] = {}
    """Sample -> the value of the state after its turn, for the algorithm `progress`."""
    turn_states: dict[str, str] = {}
    """Sample -> the environment's name of the state before its turn."""
    turn_reasons: dict[str, str] = {}
    """Sample -> why its turn earned what it did."""
    metrics: dict[str, float | int | bool] = {}
    metadata: dict[str, MetadataValue] = {}
    logs: list[str] = []
    start_time: datetime = Field(default_factory=datetime.now, exclude=True)
    _judge: JudgeNote | None = PrivateAttr(default=None)
    """What the judge of its reward said, for the record of the step."""
    rollout_id: str | None = Field(default_factory=current_rollout)
    """The rollout this was made in; the server's ledger knows its samples by this name."""

    _scope: ExitStack | None = PrivateAttr(default=None)
    """Records what is said, inside of `with`."""

    model_config = ConfigDict(ignored_types=(DeferredMethod,))
    history = DeferredMethod(f"{_VIEWS}.histories:history")
    histories = DeferredMethod(f"{_VIEWS}.histories:histories")
    chat_completions_history = DeferredMethod(f"{_VIEWS}.histories:chat_completions_history")
    chat_completions_histories = DeferredMethod(f"{_VIEWS}.histories:chat_completions_histories")
    anthropic_messages_history = DeferredMethod(f"{_VIEWS}.histories:anthropic_messages_history")
    anthropic_messages_histories = DeferredMethod(f"{_VIEWS}.histories:anthropic_messages_histories")
    responses_history = DeferredMethod(f"{_VIEWS}.histories:responses_history")
    responses_histories = DeferredMethod(f"{_VIEWS}.histories:responses_histories")
    completions_string_history = DeferredMethod(f"{_VIEWS}.histories:completions_string_history")
    completions_string_histories = DeferredMethod(f"{_VIEWS}.histories:completions_string_histories")
    completions_token_history = DeferredMethod(f"{_VIEWS}.histories:completions_token_history")
    completions_token_histories = DeferredMethod(f"{_VIEWS}.histories:completions_token_histories")
    tokenize = DeferredMethod(f"{_VIEWS}.tokenize:tokenize_trajectory")
    tensorize = DeferredMethod(f"{_VIEWS}.tensorize:tensorize")
    compact_dump = DeferredMethod(f"{_VIEWS}.compact:compact_dump")
    _of_models = DeferredMethod(f"{_VIEWS}.model_copies:copy_of_models")

    _choices = field_validator("messages_and_choices", mode="before")(choices_of_json)

    @model_validator(mode="before")
    @classmethod
    def _notice_unknown(cls, data: Any) -> Any:
        """Says which fields nobody knows, and which do not go together."""
        if isinstance(data, dict) and cls.model_config.get("extra", "ignore") == "ignore":
            for name in data.keys() - cls.model_fields.keys():
                _tell_unknown_field(cls, name)
        if isinstance(data, dict) and data.get("exchanges") and any(map(data.get, FROM_EXCHANGES)):
            raise ValueError(
                "give either `exchanges`, from which the conversations follow, or "
                "`messages_and_choices`, `tools` and `additional_histories`"
            )
        return data

    @model_validator(mode="after")
    def _read_given_exchanges(self) -> Self:
        if self.exchanges and not self.messages_and_choices:
            self._read_exchanges()
        return self

    def _read_exchanges(self) -> None:
        """Fills the conversations from the exchanges."""
        from art.recording.recorder import Recorder

        recorder = Recorder(self, with_exchanges=True)
        for exchange in self.exchanges.in_order():
            recorder.add_conversations(exchange)

    @model_serializer(mode="wrap")
    def _dump(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out what follows from the exchanges, or exchanges that there are none of."""
        fields: dict[str, Any] = handler(self)
        for name in FROM_EXCHANGES if self.exchanges else ("exchanges",):
            fields.pop(name, None)
        return fields

    def __enter__(self) -> Self:
        from art.recording.scope import recorded

        if self._scope is not None:
            raise RuntimeError("this trajectory is being recorded already: make one for each `with`")
        self.rollout_id = self.rollout_id or uuid4().hex
        self._scope = ExitStack()
        self._scope.enter_context(rollout_scope(self.rollout_id))
        self._scope.enter_context(recorded(self, with_exchanges=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from art.recording.scope import check_innermost

        check_innermost(self)
        scope, self._scope = self._scope, None
        if scope is not None:
            scope.__exit__(kind, error, trace)
        self._note_steps()
        self.finish()

    def _note_steps(self) -> None:
        """Sets the policy versions to those of the turns; without a sampled turn they stay."""
        histories: list[Trajectory | History] = [self, *self.additional_histories]
        items = [item for history in histories for item in history.messages_and_choices]
        steps = [step for item in items if is_choice(item) and (step := sampled_step(item)) is not None]
        self.initial_policy_version = min(steps, default=self.initial_policy_version)
        self.final_policy_version = max(steps, default=self.final_policy_version)

    def reward_turn(
        self,
        turn: Any,
        reward: float = 0.0,
        *,
        state: Any = None,
        value: float | None = None,
        reason: str | None = None,
    ) -> None:
        """Adds a reward to `reward` and says which turn earned it; algorithms of turns use it.

        turn: a `Choice`, or the index of one (-1: the newest). state: the state before it, known by its text;
        turns in one state are compared. value: of the state after it (`progress`). reason: for people. Raises
        ConfigurationError for a turn that was not sampled, and what is or adds up to no finite number.
        """
        turns: Any = self.messages_and_choices
        choice = turns[turn] if isinstance(turn, int) and -len(turns) <= turn < len(turns) else turn
        sample = sample_id(choice) if is_choice(choice) else None
        if sample is None:
            raise ConfigurationError(f"reward_turn({turn!r:.100}): no turn that ART's server sampled")
        earned = self.turn_rewards.get(sample, 0.0) + as_number("reward", reward)
        for number in (earned, as_number("reward", value or 0.0)):
            if not math.isfinite(number):
                raise ConfigurationError(f"reward_turn(): {number!r} is no finite number")
        self.turn_rewards[sample] = earned
        if not isinstance(self.reward, Unscored):
            self.reward += float(reward)
        self.turn_states |= {} if state is None else {sample: str(state)}
        self.turn_values |= {} if value is None else {sample: float(value)}
        self.turn_reasons |= {} if reason is None else {sample: str(reason)}

    def model_copy(
        self,
        *,
        update: Mapping[str, Any] | None = None,
        deep: bool = False,
        include_models: Collection[str] | None = None,
        exclude_models: Collection[str] | None = None,
    ) -> Self:
        """Returns a copy. include_models, exclude_models: with the recorded calls of these models alone, or
        of all others, and the conversations that follow from them.
        """
        copied = super().model_copy(update=update, deep=deep)
        if include_models is None and exclude_models is None:
            return copied
        return cast("Self", copied._of_models(include_models, exclude_models, update or {}))

    def log(self, message: str) -> None:
        """Stores a line of text with the trajectory."""
        self.logs.append(message)

    def finish(self) -> Trajectory:
        """Sets `metrics["duration"]`: seconds since the trajectory was created."""
        self.metrics["duration"] = (datetime.now() - self.start_time).total_seconds()
        return self

    @asynccontextmanager
    async def track_duration(self, metric_name: str) -> AsyncIterator[None]:
        """Adds the seconds spent inside to `metrics["<metric_name>_duration"]`, also when it raises."""
        started = time.monotonic()
        try:
            yield
        finally:
            key = f"{metric_name}_duration"
            self.metrics[key] = self.metrics.get(key, 0.0) + time.monotonic() - started

    def messages(self) -> Messages:
        """Returns the main conversation as plain messages."""
        return get_messages(self.messages_and_choices)

    def for_logging(self) -> dict[str, Any]:
        """Returns a dict of plain values; each message says whether it is `trainable`."""
        turns = zip(self.messages(), self.messages_and_choices, strict=True)
        return {
            "reward": self.reward if not isinstance(self.reward, Unscored) else None,
            "unscored_reason": self.reward.reason if isinstance(self.reward, Unscored) else None,
            "initial_policy_version": self.initial_policy_version,
            "final_policy_version": self.final_policy_version,
            "metrics": self.metrics,
            "metadata": self.metadata,
            "tools": self.tools,
            "logs": self.logs,
            "messages": [{**message, "trainable": is_choice(item)} for message, item in turns],
        }

    def __str__(self) -> str:
        return f"Trajectory(reward={self.reward}, metrics={self.metrics}, metadata={self.metadata})"

    __repr__ = rollout_line
    _repr_html_ = rollout_html


class PydanticException(BaseModel):
    """An exception as text: it can be stored and sent."""

    type: str
    message: str
    traceback: str

    @classmethod
    def from_exception(cls, error: BaseException) -> PydanticException:
        """Converts an exception to its class, message and traceback."""
        return cls(
            type=str(type(error)), message=str(error), traceback="\n".join(tracebacks.format_exception(error))
        )


class _GroupMeta(type(BaseModel)):  # type: ignore[misc]  # pydantic's metaclass has no public name
    """`TrajectoryGroup(...)` with rollouts still to run gives an awaitable that becomes the group."""

    def __call__(cls, trajectories: Iterable[Any] = (), **fields: Any) -> Any:
        items = list(trajectories)
        if any(isawaitable(item) for item in items):
            try:
                TrajectoryGroup(weight=fields.get("weight", 1.0))  # refused before rollouts are paid for
            except ValueError:
                PendingGroup(cls, items, fields).close_unstarted()
                raise
            return PendingGroup(cast("type[TrajectoryGroup]", cls), items, fields)
        return super().__call__(items, **fields)


class TrajectoryGroup(BaseModel, metaclass=_GroupMeta):
    """The rollouts of one scenario; their rewards are compared with each other.

    Of finished `Trajectory`s (and exceptions of failed attempts) it is a group at once. Of coroutines it is
    an awaitable: `await TrajectoryGroup(rollout(model) for _ in range(8))` runs them side by side and gives
    the group, trajectories in the order of the rollouts. An attempt that returned something else counts as
    failed. weight: how often it counts in the loss.
    """

    trajectories: list[SerializeAsAny[Trajectory]] = []
    exceptions: list[PydanticException] = []
    metadata: dict[str, MetadataValue] = {}
    metrics: dict[str, float | int | bool] = {}
    logs: list[str] = []
    weight: Weight = 1.0
    model_config = ConfigDict(ignored_types=(DeferredMethod,))
    tokenize = DeferredMethod(f"{_VIEWS}.tokenize:tokenize")
    tensorize = DeferredMethod(f"{_VIEWS}.tensorize:tensorize")
    compact_dump = DeferredMethod(f"{_VIEWS}.compact:compact_dump")
    _judge_calls: list[JudgeCall] = PrivateAttr(default_factory=list)
    """What judges were asked about it, for trackers of traces."""
    _replaced: list[TrajectoryGroup] = PrivateAttr(default_factory=list)
    """Groups without a signal that it was rolled out in place of; `train` counts them."""

    def __init__(
        self,
        trajectories: Iterable[Trajectory | BaseException | Awaitable[Trajectory]] = (),
        *,
        exceptions: Iterable[BaseException | PydanticException] = (),
        metadata: dict[str, MetadataValue] | None = None,
        metrics: dict[str, float | int | bool] | None = None,
        logs: list[str] | None = None,
        weight: float = 1.0,
    ) -> None:
        items, failures = list(trajectories), list(exceptions)
        # Dicts come from JSON; pydantic makes trajectories of them.
        kept = [item for item in items if isinstance(item, Trajectory | dict)]
        for item in items:
            if isinstance(item, BaseException | PydanticException):
                failures.append(item)
            elif not isinstance(item, Trajectory | dict):
                failures.append(no_trajectory(item, "a rollout"))
        super().__init__(
            trajectories=kept,
            exceptions=[
                PydanticException.from_exception(e) if isinstance(e, BaseException) else e for e in failures
            ],
            metadata=metadata or {},
            metrics=metrics or {},
            logs=logs or [],
            weight=weight,
        )

    def log(self, message: str) -> None:
        """Stores a line of text with the group."""
        self.logs.append(message)

    def __iter__(self) -> Iterator[Trajectory]:  # type: ignore[override]  # pydantic iterates over fields
        return iter(self.trajectories)

    def __len__(self) -> int:
        return len(self.trajectories)

    def __copy__(self) -> TrajectoryGroup:
        copied = super().__copy__()
        for name in ("trajectories", "exceptions", "metadata", "metrics", "logs"):
            setattr(copied, name, getattr(self, name).copy())
        copied._judge_calls = list(self._judge_calls)
        return copied

    __repr__ = group_line
    _repr_html_ = group_html

    if TYPE_CHECKING:
        # With coroutines the constructor gives a PendingGroup, which checkers see as an awaitable group.
        def __await__(self) -> Any: ...


def format_message(message: MessageOrChoice) -> str:
    """Returns the role, the text, and the calls, one per line: "Assistant:", its text, "look_up({...})".

    Parts that are no text (images) stand in brackets.
    """
    plain: dict[str, Any] = dict(get_messages([message])[0])
    functions = [call["function"] for call in plain.get("tool_calls") or ()]
    lines = [f"{plain['role'].capitalize()}:", text_of_content(plain.get("content"))]
    lines += [f"{function['name']}({function['arguments']})" for function in functions]
    return "\n".join(line for line in lines if line)


def get_trajectory_messages(trajectory: Trajectory) -> Messages:
    """Returns the main conversation as plain messages, like `trajectory.messages()`."""
    return trajectory.messages()


def record_metrics(context: GatherContext, trajectory: Trajectory) -> None:
    """Adds a finished rollout to the means, and writes its `completion_tokens` into it.

    Of recorded calls these are the sum of what the replies count. Otherwise they are the mean per turn, whose
    tokens are those of its logprobs, or without these what the server counted.
    """
    turns = [sampled_tokens(item) for item in trajectory.messages_and_choices if is_choice(item)]
    known = [tokens for tokens in turns if tokens is not None]
    mean = sum(known) / len(known) if known else None
    if (tokens := trajectory.exchanges.completion_tokens() if trajectory.exchanges else mean) is not None:
        trajectory.metrics["completion_tokens"] = float(tokens)
    reward = known_reward(trajectory)
    shown: dict[str, Any] = {} if reward is None else {"reward": reward}
    numbers = {name: value for name, value in {**shown, **trajectory.metrics}.items() if value is not None}
    for name, value in {name: as_number(name, value) for name, value in numbers.items()}.items():
        context.metric_sums[name] += value  # type: ignore[assignment]  # typeshed counts whole numbers only
        context.metric_divisors[name] += 1


class PendingGroup:
    """A group whose rollouts have not run yet: `await` it once to get the `TrajectoryGroup`."""

    def __init__(self, group: type[TrajectoryGroup], items: list[Any], fields: dict[str, Any]) -> None:
        self._group, self._items, self._fields = group, items, fields
        self._awaited = False
        self._num_trajectories = len(items)

    def __await__(self) -> Generator[Any, None, TrajectoryGroup]:
        if self._awaited:
            raise RuntimeError("this TrajectoryGroup was already awaited; make a new one for new rollouts")
        self._awaited = True
        return self._run().__await__()

    def close_unstarted(self) -> None:
        """Drops rollouts that never started."""
        for item in self._items:
            close_unstarted(item)

    async def _run(self) -> TrajectoryGroup:
        context = get_gather_context()
        context.total = context.total or len(self._items)
        context.counted = True
        results = list(self._items)
        waiting = [index for index, item in enumerate(self._items) if isawaitable(item)]
        for item in self._items:
            if isinstance(item, Trajectory):
                record_metrics(context, item)
                context.update_pbar(1)

        def on_end(position: int, task: asyncio.Task[Any]) -> None:
            index = waiting[position]
            results[index] = count_rollout(context, task, self._items[index])

        await run_side_by_side([self._items[index] for index in waiting], in_rollout, on_end)
        return self._group(results, **self._fields)


def count_rollout(
    context: GatherContext, task: asyncio.Task[Any], work: Awaitable[Any]
) -> Trajectory | BaseException:
    """Counts one ended rollout. Returns its trajectory, or its error if the context tolerates it.

    work: what the rollout was given as; it names the function in the error.
    """
    error = task_failure(task)
    if error is None and not isinstance(task.result(), Trajectory):
        error = no_trajectory(task.result(), function_name(work))
    if error is None:
        try:
            record_metrics(context, task.result())
        except ConfigurationError as wrong_number:
            error = wrong_number
    if error is not None:
        context.fail(error)
        return error
    context.update_pbar(1)
    return cast("Trajectory", task.result())


def gathered_groups(given: Iterable[Any], caller: str) -> list[Any]:
    """Returns what `gathered` does; an inner list of trajectories and exceptions becomes their group."""
    return [
        TrajectoryGroup(item)
        if isinstance(item, list | tuple) and all(isinstance(one, Trajectory | BaseException) for one in item)
        else item
        for item in gathered(given, caller)
    ]


def gathered(given: Iterable[T], caller: str) -> list[T]:
    """Returns the groups or trajectories that a call was given as a list. Raises TypeError for a coroutine
    that nobody awaited, and for anything else that is no list.
    """
    items: Any = given
    if isinstance(items, Iterable):
        return list(items)
    if isinstance(items, PendingGroup):
        found = "a TrajectoryGroup whose rollouts have not run: `await art.gather_trajectory_groups([...])`"
    elif isawaitable(items):
        found = f"{kind_of(items)}, {function_name(items)}: write `await` before this call"
    else:
        found = f"{kind_of(items)}, not a list"
    close_unstarted(items)
    raise TypeError(f"{caller} was given {found}")


def tokenize(given: Trajectory | TrajectoryGroup, **options: Any) -> Any:
    """Returns the exact tokens of a trajectory or group: `given.tokenize(**options)`."""
    return given.tokenize(**options)


def tensorize(given: Trajectory | TrajectoryGroup, **options: Any) -> Any:
    """Returns the exact tokens of a trajectory or group as tensors: `given.tensorize(**options)`."""
    return given.tensorize(**options)


LegacyHistory = History
_PLACES = {
    "art.exchanges": (
        "ChatCompletionsExchange",
        "CompletionsExchange",
        "MessagesExchange",
        "ResponsesExchange",
    ),
    f"{_VIEWS}.compact": ("compact_dump", "compact_validate", "compact_validate_json"),
    f"{_VIEWS}.histories": (
        "AnthropicMessagesHistory",
        "ChatCompletionsHistory",
        "CompletionsStringHistory",
        "CompletionsTokenHistory",
        "ResponsesHistory",
    ),
    f"{_VIEWS}.tokenized": (
        "TokenFlag",
        "TokenizedHistory",
        "TokenizedMultiHistoryTrajectory",
        "TokenizedTrajectory",
        "TokenizedTrajectoryGroup",
    ),
    f"{_VIEWS}.tensorize": (
        "TensorizedHistory",
        "TensorizedMultiHistoryTrajectory",
        "TensorizedTrajectory",
        "TensorizedTrajectoryGroup",
    ),
}
"""Further names of this module, loaded when they are used."""


def __getattr__(name: str) -> Any:
    for place, names in _PLACES.items():
        if name in names:
            return getattr(import_module(place), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
