"""The rollout workers: scenario -> finished group, whatever happens on the way."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from art.pipeline_trainer.books import Books
from art.pipeline_trainer.pace import Pace
from art.pipeline_trainer.rollout import RolloutFn
from art.pipeline_trainer.scenarios import Numbered, ScenarioStream, describe
from art.trajectories import TrajectoryGroup

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A group that waits for the trainer. Complete before it is in the queue."""

    taken: Numbered
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
        state: Books,
        pace: Pace,
        queue: asyncio.Queue[Finished | None],
        version: Callable[[], int],
    ) -> None:
        """version: the step that is served now."""
        self._model, self._rollout_fn, self._config = model, rollout_fn, config
        self._stream, self._state, self._pace, self._queue = stream, state, pace, queue
        self._version = version
        self.running = 0
        self.busy_s = self.idle_s = 0.0
        """Seconds of rollouts that have ended, and in which workers waited; all workers together."""

    async def run(self, workers: int) -> None:
        """Work until the stream ends or the pace stops; then the queue ends with None."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(workers):
                tasks.create_task(self._work(), name=f"rollouts {number}")
        await self._queue.put(None)

    async def _work(self) -> None:
        while await self._idle(self._pace.start()):
            taken = await self._stream.take(self._state.is_settled)
            if taken is None:
                self._pace.taken()
                return
            try:
                finished = await self._roll(taken)
                await self._idle(self._queue.put(finished))
            except BaseException:
                self._stream.give_back(taken)
                raise

    async def _idle(self, wait: Awaitable[T]) -> T:
        started = time.monotonic()
        try:
            return await wait
        finally:
            self.idle_s += time.monotonic() - started

    async def _roll(self, taken: Numbered) -> Finished:
        began, started = self._version(), time.monotonic()
        self.running += 1
        context = self._model.activate_metrics_context("train")
        try:
            group = await self._group(taken)
        finally:
            context.var.reset(context)
            self.running -= 1
        seconds, ended = time.monotonic() - started, self._version()
        self.busy_s += seconds
        for trajectory in group:
            if trajectory.initial_policy_version is None:
                trajectory.initial_policy_version = began
            if trajectory.final_policy_version is None:
                trajectory.final_policy_version = ended
        describe(group, taken.scenario)
        return Finished(taken=taken, group=group, version=began, seconds=seconds)

    async def _group(self, taken: Numbered) -> TrajectoryGroup:
        """The rollout's group; an error of the rollout makes a group that failed as a whole."""
        try:
            group = await self._rollout_fn(self._model, taken.scenario, self._config)
            if not isinstance(group, TrajectoryGroup):
                raise TypeError(f"rollout_fn returned {group!r}, not a TrajectoryGroup")
        except Exception as error:  # noqa: BLE001 - the user's code: any error is a failed group, counted
            return self._failed(taken, error)
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            return self._failed(taken, error)  # the rollout's own affair, not this worker's end
        if not group.trajectories and group.exceptions:
            first = group.exceptions[0]
            _log.warning(
                "all rollouts of scenario %d failed; the first: %s %s",
                taken.number,
                first.type,
                first.message,
            )
        return group

    def _failed(self, taken: Numbered, error: BaseException) -> TrajectoryGroup:
        _log.warning("the group of scenario %d failed: %r", taken.number, error, exc_info=error)
        return TrajectoryGroup([error])
