"""The loop of every run: roll out and score, write the step down, train, log; after a kill, go on.

A step is written down (`StepUnderWay`) before its training job is asked for. What it trains on outlives a
kill of the program, and is logged once (`art.tracking.step_log`); last comes the run's own note that the step
is done. A run that goes on asks the server what came of the step under way
(`JobTraining.finish_interrupted`), and does what the kill has cut off.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic
from uuid import uuid4

from art.backend import as_backend
from art.runs.folder import TRAINED, Row, RunFolder, StepUnderWay
from art.tracking.step_log import StepLog
from art.trajectories import TrajectoryGroup
from art.types import TrainResult

if TYPE_CHECKING:
    from art.model import TrainableModel


class EvaluationLog(StepLog):
    """The log of a model's evaluations, each once in the split val."""

    ROW_MARKS: ClassVar[Mapping[str, tuple[str, ...]]] = {"val": ("val/",)}

    async def add(self, step: int, groups: list[TrajectoryGroup]) -> None:
        """Logs the rollouts of the adapter of `step`, unless its row is there. After a kill, repeat it."""
        job = f"evaluation-{step:04d}"
        await self.recover(job, step, None)
        if not await self._has_row(step):
            await self.keep(job, step, {"val": groups})
            await self.recover(job, step, None)

    async def add_numbers(self, step: int, metrics: Mapping[str, float]) -> None:
        """Logs the numbers of an evaluation of the adapter of `step`, unless its row is there."""
        if not await self._has_row(step):
            await self._row("val", step, metrics, [])

    async def _has_row(self, step: int) -> bool:
        names = await asyncio.to_thread(self.numbers, step)
        return any(name.startswith(self.ROW_MARKS["val"]) for name in names)


class JobTraining:
    """Trains one model, each step exactly once: under way, trained, logged."""

    def __init__(self, model: TrainableModel[Any, Any], log: StepLog) -> None:
        self._model, self.log = model, log
        self._backend: Any = as_backend(model.backend())

    @property
    def backend_knows_jobs(self) -> bool:
        """Returns whether it tells afterwards what came of a job. Programs may bring backends that do not."""
        return hasattr(self._backend, "training_result")

    async def train(
        self,
        step: StepUnderWay,
        groups: Sequence[TrajectoryGroup],
        *,
        logged: Mapping[str, list[TrajectoryGroup]],
        save: Callable[[StepUnderWay], Awaitable[None]],
        options: Mapping[str, Any],
    ) -> TrainResult:
        """The gradient. logged: what `log.write` is to log, by split. save: writes the step down.

        Raises what the backend raises.
        """
        await self.log.keep(step.job_id, step.step + 1, logged)
        await save(step)
        if self.backend_knows_jobs:
            options = {**options, "job_id": step.job_id, "expected_step": step.step}
        result: TrainResult = await self._backend.train(self._model, groups, **options)
        return result

    async def finish_interrupted(
        self, step: StepUnderWay | None, counts: Mapping[str, float] | None = None
    ) -> TrainResult | None:
        """Returns the result of the step that an earlier process began, now logged; None: it was not
        committed.

        Waits for a job that the server still has. counts: for the step's row. Raises what the backend raises.
        """
        if step is None:
            await self.log.forget()
            return None
        result: TrainResult | None = None
        if self.backend_knows_jobs:
            result = await self._backend.training_result(self._model, step.job_id)
        elif await self._backend.get_step(self._model) > step.step:
            logged = await asyncio.to_thread(self.log.numbers, step.step + 1)
            result = TrainResult(step.step + 1, {TRAINED: logged[TRAINED]} if TRAINED in logged else {})
        made = step.step + 1 if result is None else result.step
        metrics = None if result is None else {**result.metrics, **(counts or {})}
        await self.log.recover(step.job_id, made, metrics)
        return result


@dataclass(frozen=True, kw_only=True)
class ScoredGroups(Generic[Row]):
    """The scored groups of a step."""

    groups: list[TrajectoryGroup]
    row: Row
    """What is known of the step before its gradient."""
    learning_rate: float


class TrainingLoop(Generic[Row]):
    """Steps one after another, each with a row in the run's folder."""

    def __init__(self, model: TrainableModel[Any, Any], folder: RunFolder[Row]) -> None:
        self._model, self._folder = model, folder
        self._training = JobTraining(model, StepLog(model))

    async def recover(self) -> Row | None:
        """The row of the step that an earlier process committed and did not log, now in the folder."""
        begun = self._folder.step_under_way()
        counts = None if begun is None else begun.known["row"].get("counts")
        result = await self._training.finish_interrupted(begun, counts)
        if begun is None or result is None:
            return None
        kind: Any = self._folder.ROW
        row: Row = kind(**begun.known["row"]).with_result(result, seconds=None)
        self._folder.add_step(row)
        return row

    async def run(
        self,
        total: int,
        roll_out: Callable[[int], Awaitable[ScoredGroups[Row]]],
        on_step: Callable[[Row], None],
    ) -> None:
        """Runs from the model's newest step until it has `total`. roll_out: gets the step, from 0."""
        for step in range(await self._model.get_step(), total):
            row = await self._train(step, await roll_out(step))
            self._folder.add_step(row)
            on_step(row)

    async def _train(self, step: int, scored: ScoredGroups[Row]) -> Row:
        begin = time.monotonic()
        under_way = StepUnderWay(job_id=uuid4().hex, step=step, known={"row": asdict(scored.row)})

        async def save(begun: StepUnderWay) -> None:
            self._folder.begin_step(begun)

        logged = {"train": scored.groups}
        options = {"learning_rate": scored.learning_rate, "verbose": False}
        result = await self._training.train(
            under_way, scored.groups, logged=logged, save=save, options=options
        )
        metrics = {**result.metrics, **scored.row.counts}
        await self._training.log.write(under_way.job_id, result.step, metrics, logged)
        return scored.row.with_result(result, seconds=time.monotonic() - begin)
