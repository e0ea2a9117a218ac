"""The record of what an agent did: trajectories, the groups they are compared in, and further histories."""

from __future__ import annotations

import time
import traceback as tracebacks
import warnings
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from functools import lru_cache
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, Field, SerializeAsAny, field_validator, model_validator

from art.capture import current_rollout
from art.spelling import did_you_mean
from art.turns import choices_of_json
from art.turns import get_messages as get_messages
from art.turns import is_choice as is_choice
from art.types import Unscored

if TYPE_CHECKING:
    from art.messages import Messages, MessagesAndChoices, Tools
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
        """The conversation as plain messages."""
        return get_messages(self.messages_and_choices)


@lru_cache(maxsize=1024)
def _warn_of(cls: type[BaseModel], name: str) -> None:
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
    """One rollout: what was said and done, and how good it was.

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
    rollout_id: str | None = Field(default_factory=current_rollout)
    """The rollout this was made in; the server's ledger knows its samples by this name."""

    _choices = field_validator("messages_and_choices", mode="before")(choices_of_json)

    @model_validator(mode="before")
    @classmethod
    def _notice_unknown(cls, data: Any) -> Any:
        """Fields nobody knows are ignored, as users' programs expect; a warning names each once."""
        if isinstance(data, dict) and cls.model_config.get("extra", "ignore") == "ignore":
            for name in data.keys() - cls.model_fields.keys():
                _warn_of(cls, name)
        return data

    def log(self, message: str) -> None:
        """Keep a line of text with the trajectory."""
        self.logs.append(message)

    def finish(self) -> Trajectory:
        """Set `metrics["duration"]`: seconds since the trajectory was made."""
        self.metrics["duration"] = (datetime.now() - self.start_time).total_seconds()
        return self

    @asynccontextmanager
    async def track_duration(self, metric_name: str) -> AsyncIterator[None]:
        """Add the seconds spent inside to `metrics["<metric_name>_duration"]`, also when it raises."""
        started = time.monotonic()
        try:
            yield
        finally:
            key = f"{metric_name}_duration"
            self.metrics[key] = self.metrics.get(key, 0.0) + time.monotonic() - started

    def messages(self) -> Messages:
        """The main conversation as plain messages."""
        return get_messages(self.messages_and_choices)

    def for_logging(self) -> dict[str, Any]:
        """A dict of plain values; each message says whether it is `trainable`."""
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


class PydanticException(BaseModel):
    """An exception as text: it can be stored and sent."""

    type: str
    message: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> PydanticException:
        """The exception's class, message and traceback."""
        return cls(
            type=str(type(error)), message=str(error), traceback="\n".join(tracebacks.format_exception(error))
        )


class _GroupMeta(type(BaseModel)):  # type: ignore[misc]  # pydantic's metaclass has no public name
    """`TrajectoryGroup(...)` with rollouts still to run gives an awaitable that becomes the group."""

    def __call__(cls, trajectories: Iterable[Any] = (), **fields: Any) -> Any:
        items = list(trajectories)
        if any(isawaitable(item) for item in items):
            from art.rollouts import PendingGroup

            return PendingGroup(cast("type[TrajectoryGroup]", cls), items, fields)
        return super().__call__(items, **fields)


class TrajectoryGroup(BaseModel, metaclass=_GroupMeta):
    """Attempts at one scenario; their rewards are compared with each other.

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
                failures.append(TypeError(f"{type(item).__name__!r} object {item!r} is not a Trajectory"))
        super().__init__(
            trajectories=kept,
            exceptions=[PydanticException.of(e) if isinstance(e, BaseException) else e for e in failures],
            metadata=metadata or {},
            metrics=metrics or {},
            logs=logs or [],
        )

    def log(self, message: str) -> None:
        """Keep a line of text with the group."""
        self.logs.append(message)

    def __iter__(self) -> Iterator[Trajectory]:  # type: ignore[override]  # pydantic iterates over fields
        return iter(self.trajectories)

    def __len__(self) -> int:
        return len(self.trajectories)

    def __copy__(self) -> TrajectoryGroup:
        copied = super().__copy__()
        for name in ("trajectories", "exceptions", "metadata", "metrics", "logs"):
            setattr(copied, name, getattr(self, name).copy())
        return copied

    if TYPE_CHECKING:
        # With coroutines the constructor gives a PendingGroup, which checkers see as an awaitable group.
        def __await__(self) -> Any: ...
