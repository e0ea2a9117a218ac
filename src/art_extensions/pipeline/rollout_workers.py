"""The rollout workers: from a scenario to a finished group, whatever happens on the way.

Scenarios come from a numbered stream. Each is handed out once, and again where an earlier run did not get
to its end. `RolloutFn` and `EvalFn` say what a program has to write.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sized,
)
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from art.errors import ConfigurationError
from art.process.failures import ForgivenFailures
from art.rollout_tasks import in_rollout
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import no_trajectory
from art_extensions.pipeline.pipeline_state import PipelineState, RolloutPace

if TYPE_CHECKING:
    from art.model import TrainableModel


ScenarioT = TypeVar("ScenarioT", bound=Mapping[str, Any])
_ConfigT = TypeVar("_ConfigT")

RolloutFn = Callable[["TrainableModel[Any, Any]", ScenarioT, _ConfigT], Awaitable[TrajectoryGroup]]
"""One scenario -> a group of rollouts."""
SingleRolloutFn = Callable[["TrainableModel[Any, Any]", ScenarioT, _ConfigT], Awaitable[Trajectory]]
"""One scenario -> one rollout."""
Evaluated = list[Trajectory | TrajectoryGroup]
EvalFn = Callable[["TrainableModel[Any, Any]", int, _ConfigT], Awaitable[Evaluated | dict[str, Evaluated]]]
"""A step -> the evaluation's trajectories, or those of several splits."""


def make_group_rollout_fn(
    single_fn: SingleRolloutFn[ScenarioT, _ConfigT], n: int = 4
) -> RolloutFn[ScenarioT, _ConfigT]:
    """Rollouts made by `single_fn`, `n` side by side, as one group; failed ones become its exceptions.

    Raises ConfigurationError when `n` is below 1.
    """
    if n < 1:
        raise ConfigurationError(f"make_group_rollout_fn({n=}): at least 1 rollout is needed")

    async def rollout(
        model: TrainableModel[Any, Any], scenario: ScenarioT, config: _ConfigT
    ) -> TrajectoryGroup:
        rollouts = (in_rollout(single_fn(model, scenario, config)) for _ in range(n))
        ended = await asyncio.gather(*rollouts, return_exceptions=True)
        name = f"{getattr(single_fn, '__name__', 'single_fn')}()"
        return TrajectoryGroup(
            one if isinstance(one, Trajectory | BaseException) else no_trajectory(one, name) for one in ended
        )

    return rollout


_SCALARS = (str, int, float, bool, type(None))


class NumberedScenario(NamedTuple):
    """A scenario and its number in the stream, from 0."""

    number: int
    scenario: Any


class ScenarioStream:
    """Hands out scenarios to several takers.

    The stream must be the same in every run of one model: a resumed run counts through it.
    """

    def __init__(self, scenarios: Iterable[Any] | AsyncIterable[Any]) -> None:
        """Raises ConfigurationError for what cannot be iterated over."""
        if not isinstance(scenarios, Iterable | AsyncIterable):
            raise ConfigurationError(
                f"PipelineTrainer(scenarios={scenarios!r}): an iterable or an async iterator of dicts"
            )
        self.length = len(scenarios) if isinstance(scenarios, Sized) else None
        """How many there are, where that is known."""
        self._source = scenarios
        self._numbered: AsyncIterator[NumberedScenario] | None = None
        self.again: deque[NumberedScenario] = deque()
        """Scenarios that came back without an outcome: the next taker gets them."""
        self._lock = asyncio.Lock()

    async def next_scenario(self, is_settled: Callable[[int], bool]) -> NumberedScenario | None:
        """The next scenario that is not settled; None at the end."""
        async with self._lock:
            while self.again:
                if not is_settled(self.again[0].number):
                    return self.again.popleft()
                self.again.popleft()
            if self._numbered is None:
                self._numbered = _numbered_scenarios(self._source)
            async for one in self._numbered:
                if not is_settled(one.number):
                    return one
            return None

    def rewind(self) -> None:
        """Rewinds to the first scenario for a new run, or continues if the stream cannot be rewound."""
        if not isinstance(self._source, Iterator | AsyncIterator):
            self._numbered = None
            self.again.clear()


async def _numbered_scenarios(source: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[NumberedScenario]:
    number = 0
    if isinstance(source, AsyncIterable):
        async for scenario in source:
            yield NumberedScenario(number, scenario)
            number += 1
        return
    waiting: Iterator[Any] = iter(source)
    for scenario in waiting:
        yield NumberedScenario(number, scenario)
        number += 1


def describe_scenario(group: TrajectoryGroup, scenario: Any) -> None:
    """Copy the scalars of `scenario["metadata"]` into the group's: `scenario_id` as it is, others as
    `scenario_<key>`. What the rollout wrote itself stays.
    """
    metadata = scenario.get("metadata") if isinstance(scenario, Mapping) else None
    for key, value in metadata.items() if isinstance(metadata, Mapping) else ():
        if isinstance(value, _SCALARS):
            group.metadata.setdefault(key if key == "scenario_id" else f"scenario_{key}", value)


T = TypeVar("T")

_log = logging.getLogger("art.runs.pipeline")  # below `art`, so that `show_log` shows its lines


@dataclass(frozen=True, kw_only=True)
class FinishedGroup:
    """A group that waits for the trainer. Complete before it is in the queue."""

    numbered: NumberedScenario
    group: TrajectoryGroup
    version: int
    """The step that was served when it began."""
    seconds: float


class RolloutWorkers:
    """Fills the queue. Each request of a rollout gets the newest adapter, and ends on it."""

    def __init__(
        self,
        model: Any,
        rollout_fn: RolloutFn[Any, Any],
        config: Any,
        *,
        stream: ScenarioStream,
        state: PipelineState,
        pace: RolloutPace,
        queue: asyncio.Queue[FinishedGroup | None],
        version: Callable[[], int],
        wanted: Callable[[], int],
        most_queued: Callable[[], int],
    ) -> None:
        """version: the step that is served now. wanted: the number of workers, and most_queued that of
        finished groups that may wait; both may change, and `adjust` acts on the first.
        """
        self._model, self._rollout_fn, self._config = model, rollout_fn, config
        self._stream, self._state, self._pace, self._queue = stream, state, pace, queue
        self._version, self._wanted, self._most_queued = version, wanted, most_queued
        self._tasks: asyncio.TaskGroup | None = None
        self._workers = 0
        self.running = 0
        self.busy_s = self.idle_s = 0.0
        """Seconds of rollouts that have ended, and in which workers waited; all workers together."""
        self.rollouts, self.failures = 0, ForgivenFailures()

    async def run(self) -> None:
        """Work until the stream ends or the pace stops; then the queue ends with None."""
        async with asyncio.TaskGroup() as self._tasks:
            self.adjust()
        self._queue.put_nowait(None)

    def adjust(self) -> None:
        """Starts workers up to the number that is wanted; those above it end after their group."""
        while self._tasks is not None and self._workers < self._wanted():
            self._tasks.create_task(self._work(), name=f"rollouts {self._workers}")
            self._workers += 1

    async def _work(self) -> None:
        while self._workers <= self._wanted():
            if not await self._count_idle(self._pace.start()):
                self._tasks = None
                return
            numbered = await self._stream.next_scenario(self._state.is_settled)
            if numbered is None:
                self._pace.take_groups()
                self._tasks = None
                return
            try:
                finished = await self._roll_out(numbered)
                await self._count_idle(self._pace.wait_until(self._has_room))
                self._queue.put_nowait(finished)
            except BaseException:
                self._stream.again.append(numbered)
                raise
        self._workers -= 1

    def _has_room(self) -> bool:
        return self._queue.qsize() < self._most_queued()

    async def _count_idle(self, wait: Awaitable[T]) -> T:
        started = time.monotonic()
        try:
            return await wait
        finally:
            self.idle_s += time.monotonic() - started

    async def _roll_out(self, numbered: NumberedScenario) -> FinishedGroup:
        began, started = self._version(), time.monotonic()
        self.running += 1
        context = self._model.activate_metrics_context("train")
        try:
            group = await self._call_rollout(numbered)
        finally:
            context.var.reset(context)
            self.running -= 1
        self.rollouts += len(group) + len(group.exceptions)
        seconds, ended = time.monotonic() - started, self._version()
        self.busy_s += seconds
        for trajectory in group:
            if trajectory.initial_policy_version is None:
                trajectory.initial_policy_version = began
            if trajectory.final_policy_version is None:
                trajectory.final_policy_version = ended
        describe_scenario(group, numbered.scenario)
        return FinishedGroup(numbered=numbered, group=group, version=began, seconds=seconds)

    async def _call_rollout(self, numbered: NumberedScenario) -> TrajectoryGroup:
        """The rollout's group; an error of the rollout makes a group that failed as a whole."""
        try:
            group: Any = await self._rollout_fn(self._model, numbered.scenario, self._config)
            if not isinstance(group, TrajectoryGroup):
                name = getattr(self._rollout_fn, "__name__", "rollout_fn")
                raise no_trajectory(group, f"{name}()", "a TrajectoryGroup")
        except Exception as error:  # noqa: BLE001 - the user's code: any error is a failed group, counted
            return self._failed_group(numbered, error)
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            return self._failed_group(numbered, error)  # the rollout's own affair, not this worker's end
        for failure in group.exceptions:
            self.failures.add(failure)
        if not group.trajectories and group.exceptions:
            _log.warning("all rollouts of scenario %d failed", numbered.number)
        return group

    def _failed_group(self, numbered: NumberedScenario, error: BaseException) -> TrajectoryGroup:
        self.failures.add(error)
        _log.warning("the group of scenario %d failed: %r", numbered.number, error)
        return TrajectoryGroup([error])
