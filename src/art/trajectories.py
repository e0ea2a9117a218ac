"""The record of what an agent did: trajectories, the groups they are compared in, and further histories.

And the rollouts that they come of. Each runs in a scope: an id in a context variable, sent along with each
completion request. Every rollout that `TrajectoryGroup` or a gather runs gets a fresh id in its own task. The
ids let the server tell concurrent rollouts of one scenario apart; without one it matches conversations by
their text. A `TrajectoryGroup` of coroutines is an awaitable that runs them side by side, and leaves none
behind, whatever happens to its siblings; `GatherContext` counts what they did.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
import traceback as tracebacks
import warnings
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import uuid4

from pydantic import BaseModel, Field, PrivateAttr, SerializeAsAny, field_validator, model_validator

from art.errors import ConfigurationError, did_you_mean
from art.process.failures import ForgivenFailures
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
    text_of_content,
)
from art.types import get_messages as get_messages
from art.types import is_choice as is_choice
from art.wire.rollouts import TOKENS_FIELD

if TYPE_CHECKING:
    from art.openai import MessageOrChoice, Messages
    from art.wire.rollout_record import JudgeNote


T = TypeVar("T")

_ROLLOUT: ContextVar[str | None] = ContextVar("art_rollout", default=None)


def current_rollout() -> str | None:
    """Returns the id of the rollout this code runs in, or None outside of one."""
    return _ROLLOUT.get()


@contextmanager
def rollout_scope(rollout_id: str | None = None) -> Iterator[str]:
    """Assigns the requests inside the block to one rollout. The gather functions do this themselves."""
    rollout_id = rollout_id or uuid4().hex
    if not (rollout_id.isascii() and rollout_id.isprintable()):
        raise ConfigurationError(
            f"rollout id {rollout_id!r}: only printable ASCII fits into a request's header"
        )
    token = _ROLLOUT.set(rollout_id)
    try:
        yield rollout_id
    finally:
        _ROLLOUT.reset(token)


async def in_rollout(work: Awaitable[T]) -> T:
    """Awaits `work` as a rollout of its own. Run it as a task, so that the id stays in that task's
    context.
    """
    with rollout_scope():
        return await work


if TYPE_CHECKING:
    from art.openai import Messages, MessagesAndChoices, Tools
else:
    # Pydantic keeps the items as they are: dicts by reference with unknown keys, choices with their extra
    # fields.
    MessagesAndChoices = list[Any]
    Tools = list[Any]

MetadataValue = float | int | str | bool | None


class History(BaseModel):
    """One conversation. A trajectory with sub-agents or a compacted context has several."""

    messages_and_choices: MessagesAndChoices
    tools: Tools | None = None

    _choices = field_validator("messages_and_choices", mode="before")(choices_of_json)

    def messages(self) -> Messages:
        """Returns the conversation as plain messages."""
        return get_messages(self.messages_and_choices)


@lru_cache(maxsize=1024)
def _warn_of_unknown_field(cls: type[BaseModel], name: str) -> None:
    known = list(cls.model_fields)
    for one in cls.model_fields.values():
        known += [alias for alias in (one.alias, one.validation_alias) if isinstance(alias, str)]
    if name in known:
        return
    guess = did_you_mean(name, known, likeness=0.75)
    hint = f", {guess}" if guess else "; to keep it, use `metadata` or a subclass with this field"
    message = f"{cls.__name__}({name}=...) is ignored: no such field{hint}"
    warnings.warn(message, UserWarning, stacklevel=4)  # above the validator and pydantic's constructor


class Trajectory(BaseModel):
    """The record of one rollout: its messages and its reward.

    A `Choice` in `messages_and_choices` is a turn that is trained, a dict is context. Example: a system
    message, a user message and `completion.choices[0]`, with `reward=1.0`. Subclasses may add fields; unknown
    fields are ignored with a warning.
    """

    messages_and_choices: MessagesAndChoices = []
    tools: Tools | None = None
    additional_histories: list[History] = []
    reward: float | Unscored = 0.0
    initial_policy_version: int | None = None
    final_policy_version: int | None = None
    metrics: dict[str, float | int | bool] = {}
    metadata: dict[str, MetadataValue] = {}
    logs: list[str] = []
    start_time: datetime = Field(default_factory=datetime.now, exclude=True)
    _judge: JudgeNote | None = PrivateAttr(default=None)
    """What the judge of its reward said, for the record of the step."""
    rollout_id: str | None = Field(default_factory=current_rollout)
    """The rollout this was made in; the server's ledger knows its samples by this name."""

    _choices = field_validator("messages_and_choices", mode="before")(choices_of_json)

    @model_validator(mode="before")
    @classmethod
    def _notice_unknown(cls, data: Any) -> Any:
        """Fields nobody knows are ignored, as users' programs expect; a warning names each once."""
        if isinstance(data, dict) and cls.model_config.get("extra", "ignore") == "ignore":
            for name in data.keys() - cls.model_fields.keys():
                _warn_of_unknown_field(cls, name)
        return data

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
            return PendingGroup(cast("type[TrajectoryGroup]", cls), items, fields)
        return super().__call__(items, **fields)


class TrajectoryGroup(BaseModel, metaclass=_GroupMeta):
    """The rollouts of one scenario; their rewards are compared with each other.

    Of finished `Trajectory`s (and exceptions of failed attempts) it is a group at once. Of coroutines it is
    an awaitable: `await TrajectoryGroup(rollout(model) for _ in range(8))` runs them side by side and gives
    the group, trajectories in the order of the rollouts. An attempt that returned something else counts as
    failed.
    """

    trajectories: list[SerializeAsAny[Trajectory]] = []
    exceptions: list[PydanticException] = []
    metadata: dict[str, MetadataValue] = {}
    metrics: dict[str, float | int | bool] = {}
    logs: list[str] = []
    _judge_calls: list[JudgeCall] = PrivateAttr(default_factory=list)
    """What judges were asked about it, for trackers of traces."""

    def __init__(
        self,
        trajectories: Iterable[Trajectory | BaseException | Awaitable[Trajectory]] = (),
        *,
        exceptions: Iterable[BaseException | PydanticException] = (),
        metadata: dict[str, MetadataValue] | None = None,
        metrics: dict[str, float | int | bool] | None = None,
        logs: list[str] | None = None,
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


@dataclass
class GatherContext:
    """Counts what rollouts did. Programs with a gather of their own make one and pass it to
    `set_gather_context`; `pbar` may then be a bar of tqdm.
    """

    pbar: Any = None
    """An `art.tracking.progress.Progress`, or anything with tqdm's `update` and `set_postfix`."""
    metric_sums: Counter[str] = field(default_factory=Counter)
    metric_divisors: Counter[str] = field(default_factory=Counter)
    max_metrics: int | None = None
    max_exceptions: int | float = 0
    """A number of rollouts, or with 0 < x < 1 that share of `total`."""
    increment_pbar: bool = True
    total: int = 0
    """Rollouts in all; 0: the bar's total."""
    counted: bool = False
    """A group of coroutines has counted its rollouts here."""
    pbar_total_completion_tokens: bool = False
    """An option of older programs; without effect, as in `gather_trajectories`."""
    failures: ForgivenFailures = field(default_factory=ForgivenFailures, repr=False, compare=False)

    def update_pbar(self, n: int) -> None:
        """Advances the bar by `n` rollouts and shows the means so far."""
        if self.pbar is None:
            return
        names = [name for name in self.metric_divisors if name != "completion_tokens"][: self.max_metrics]
        if "completion_tokens" in self.metric_divisors:
            names.append("completion_tokens")
        means = {name: self.metric_sums[name] / self.metric_divisors[name] for name in names}
        if failed := self.metric_sums["exceptions"]:
            means["exceptions"] = failed
        moved = n if self.increment_pbar else 0
        if hasattr(self.pbar, "advance"):
            self.pbar.advance(moved, means)
        else:
            self.pbar.update(moved)
            self.pbar.set_postfix(means)

    def too_many_exceptions(self) -> bool:
        """Returns whether more rollouts failed than `max_exceptions` allows."""
        if 0 < self.max_exceptions < 1:
            total = self.total or getattr(self.pbar, "total", None) or 0
            return self.metric_sums["exceptions"] > self.max_exceptions * total
        return self.metric_sums["exceptions"] > self.max_exceptions

    def fail(self, error: BaseException) -> None:
        """Counts a failed rollout; raises its error if it is one too many."""
        self.metric_sums["exceptions"] += 1
        self.update_pbar(1)
        if self.too_many_exceptions():
            raise error
        self.failures.add(error)

    def reset(self) -> None:
        """Resets the counters. The limits stay."""
        self.metric_sums.clear()
        self.metric_divisors.clear()


gather_context_var: ContextVar[GatherContext | None] = ContextVar("art_gather", default=None)


def get_gather_context() -> GatherContext:
    """Returns the context of the gather this code runs in; outside of one a fresh context."""
    return gather_context_var.get() or GatherContext()


@contextmanager
def set_gather_context(context: GatherContext) -> Iterator[GatherContext]:
    """Counts the rollouts inside the block in `context`."""
    token = gather_context_var.set(context)
    try:
        yield context
    finally:
        gather_context_var.reset(token)


def record_metrics(context: GatherContext, trajectory: Trajectory) -> None:
    """Adds a finished rollout to the means, and writes its `completion_tokens` (mean per turn) into it.

    A turn's tokens are those of its logprobs, or without these what the server counted.
    """
    turns = [sampled_tokens(item) for item in trajectory.messages_and_choices if is_choice(item)]
    if known := [tokens for tokens in turns if tokens is not None]:
        trajectory.metrics["completion_tokens"] = sum(known) / len(known)
    reward = known_reward(trajectory)
    shown: dict[str, Any] = {} if reward is None else {"reward": reward}
    numbers = {name: value for name, value in {**shown, **trajectory.metrics}.items() if value is not None}
    for name, value in {name: as_number(name, value) for name, value in numbers.items()}.items():
        context.metric_sums[name] += value  # type: ignore[assignment]  # typeshed counts whole numbers only
        context.metric_divisors[name] += 1


def sampled_tokens(choice: Any) -> int | None:
    """Returns how many tokens of a choice were sampled; None where it does not say."""
    logprobs = getattr(choice, "logprobs", None)
    if logprobs is not None and logprobs.content is not None:
        return len(logprobs.content)
    counted = getattr(choice, TOKENS_FIELD, None)
    return counted if isinstance(counted, int) else None


CANCEL_DEADLINE_S = 30.0
"""How long a cancelled rollout may take to clean up before the gather goes on without it."""

log = logging.getLogger(__name__)


async def run_side_by_side(
    jobs: Sequence[Coroutine[Any, Any, T]], on_end: Callable[[int, asyncio.Task[T]], None]
) -> None:
    """Runs `jobs` concurrently; `on_end(index, task)` is called as each ends.

    Whatever ends this early (an error that `on_end` raises, a cancellation from outside) cancels the jobs
    that still run and waits for them, so that no task outlives the call.
    """
    ended: asyncio.Queue[asyncio.Task[T]] = asyncio.Queue()
    tasks: dict[asyncio.Task[T], int] = {}
    try:
        for index, job in enumerate(jobs):
            task = asyncio.create_task(job)
            tasks[task] = index
            task.add_done_callback(ended.put_nowait)
        for _ in tasks:
            task = await ended.get()  # each task ends, or this call is cancelled
            on_end(tasks[task], task)
    finally:
        await cancel_all(list(tasks))
        for job in jobs:
            close_unstarted(job)


async def cancel_all(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancels running tasks and waits for their end, at most `CANCEL_DEADLINE_S`."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        _, stuck = await asyncio.wait(running, timeout=CANCEL_DEADLINE_S)
        if stuck:
            log.warning("%d cancelled rollouts did not end within %g s", len(stuck), CANCEL_DEADLINE_S)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # looked at, so that asyncio does not report it as lost


def close_unstarted(job: Any) -> None:
    """Closes a coroutine that never ran, which Python would report as "never awaited"."""
    if isinstance(job, PendingGroup):
        job.close()
    elif inspect.iscoroutine(job) and inspect.getcoroutinestate(job) == inspect.CORO_CREATED:
        job.close()


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

    def close(self) -> None:
        """Drops rollouts that never started."""
        for item in self._items:
            close_unstarted(item)

    async def _run(self) -> TrajectoryGroup:
        context = get_gather_context()
        context.total = context.total or len(self._items)
        context.counted = True
        results = list(self._items)
        waiting = [index for index, item in enumerate(self._items) if inspect.isawaitable(item)]
        for item in self._items:
            if isinstance(item, Trajectory):
                record_metrics(context, item)
                context.update_pbar(1)

        def on_end(position: int, task: asyncio.Task[Any]) -> None:
            index = waiting[position]
            results[index] = count_rollout(context, task, self._items[index])

        try:
            await run_side_by_side([in_rollout(self._items[index]) for index in waiting], on_end)
        finally:
            self.close()
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
    trajectory: Trajectory = task.result()
    return trajectory


def gathered(given: Iterable[T], caller: str) -> list[T]:
    """Returns the groups or trajectories that a call was given as a list. Raises TypeError for a coroutine
    that nobody awaited, and for anything else that is no list.
    """
    items: Any = given
    if isinstance(items, Iterable):
        return list(items)
    if isinstance(items, PendingGroup):
        found = (
            "a TrajectoryGroup whose rollouts have not run: use `await art.gather_trajectory_groups([...])`"
        )
    elif isawaitable(items):
        found = f"{kind_of(items)}, {function_name(items)}: write `await` before this call"
    else:
        found = f"{kind_of(items)}, not a list"
    close_unstarted(items)
    raise TypeError(f"{caller} was given {found}")


def task_failure(task: asyncio.Task[Any]) -> BaseException | None:
    """Returns why a task failed, or None. KeyboardInterrupt and SystemExit are raised: they are no failure of
    the rollout.
    """
    if task.cancelled():
        return asyncio.CancelledError("the rollout was cancelled")
    error = task.exception()
    if isinstance(error, KeyboardInterrupt | SystemExit):
        raise error
    return error
