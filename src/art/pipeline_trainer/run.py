"""One run of a `PipelineTrainer`: rollouts, training and evaluations side by side, and their books.

    scenarios -> workers (paced) -> queue -> batch -> backend.train -> newest step -> workers

Workers and trainer meet at the queue alone; the pace keeps the first from running too far ahead.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from statistics import fmean
from typing import Any
from uuid import uuid4

from art.pipeline_trainer.batch import Collector, StepBatch
from art.pipeline_trainer.books import STATE, Books, Outcome
from art.pipeline_trainer.checkpoints import apply_retention
from art.pipeline_trainer.evaluation import CHECKPOINT, Evaluations
from art.pipeline_trainer.pace import Pace
from art.pipeline_trainer.retention import CHECKPOINT_CREATED_AT_METRIC, CHECKPOINT_SAVED_METRIC
from art.pipeline_trainer.rollout import EvalFn, RolloutFn
from art.pipeline_trainer.rollouts import Finished, RolloutWorkers
from art.pipeline_trainer.scenarios import ScenarioStream
from art.pipeline_trainer.settings import PipelineSettings
from art.pipeline_trainer.status import Status, StatusReporter
from art.trajectories import TrajectoryGroup
from art.types import TrainResult, Unscored

_log = logging.getLogger(__name__)

LOGGED_DISCARDED = 50
"""Groups of equal rewards that are logged, of one step."""
SAVED, CREATED_AT = (name.split("/")[1] for name in (CHECKPOINT_SAVED_METRIC, CHECKPOINT_CREATED_AT_METRIC))


class Run:
    """From `open` to the end of `train`; used once."""

    def __init__(
        self,
        model: Any,
        backend: Any,
        settings: PipelineSettings,
        *,
        options: Mapping[str, Any],
        ours: bool,
        needs_spread: bool,
    ) -> None:
        """options: keywords of `backend.train`. ours: it is a backend of this package, which knows jobs."""
        self._model, self._backend, self._settings = model, backend, settings
        self._options, self._ours, self._needs_spread = options, ours, needs_spread
        self._pace = Pace(batch=settings.min_batch_size, most_steps=settings.max_steps_off_policy)
        self._queue: asyncio.Queue[Finished | None] = asyncio.Queue(settings.queue_size)
        self._reward: float | None = None
        self.books = Books()

    # -- what an earlier run left --

    async def open(self) -> None:
        """Go on from the model's state, or begin. Raises what the backend raises."""
        step = await self._backend.get_step(self._model)
        state = (self._model.read_state() or {}).get(STATE) if self._settings.resume else None
        if state is None:
            self.books = Books(first_step=step, training_step=step)
        else:
            self.books = Books.from_state(state)
            await self._settle_job(step)
            _log.info(
                "%s goes on at step %d: %d scenarios are settled",
                self._model.name,
                self.books.training_step,
                self.books.settled,
            )
        await self.save()

    async def _settle_job(self, step: int) -> None:
        """Find out whether the job that was under way made its step."""
        intent, result = self.books.intent, None
        if intent is not None and self._ours:
            result = await self._backend.training_result(self._model, intent.job_id)
        elif intent is not None and step > intent.step:
            result = TrainResult(step)
        self.books.end(None if result is None else result.step)
        self.books.training_step = await self._backend.get_step(self._model)
        if result is not None and result.metrics:
            await self.save()
            await self._model.log(split="train", metrics=result.metrics, step=result.step)

    async def save(self) -> None:
        """Write the books into the model's state."""
        await asyncio.to_thread(self._model.merge_state, {STATE: self.books.state()})

    # -- the run --

    async def train(
        self,
        stream: ScenarioStream,
        rollout_fn: RolloutFn[Any, Any],
        eval_fn: EvalFn[Any] | None,
        config: Any,
        reporter: StatusReporter,
    ) -> None:
        """Until the scenarios or the steps end, somebody asks to stop, or the model has collapsed."""
        workers = RolloutWorkers(
            self._model,
            rollout_fn,
            config,
            stream=stream,
            books=self.books,
            pace=self._pace,
            queue=self._queue,
            version=lambda: self.books.training_step,
        )
        evaluations = Evaluations(
            self._model, self._backend, eval_fn, config, books=self.books, save=self.save
        )
        self._schedule_first(evaluations)
        collector = Collector(self._queue, self._settings, needs_spread=self._needs_spread, taken=self._taken)
        async with asyncio.TaskGroup() as tasks:
            status = tasks.create_task(reporter.run(lambda: self._status(workers)), name="status")
            evaluating = tasks.create_task(evaluations.run(), name="evaluations")
            rolling = tasks.create_task(workers.run(self._settings.num_rollout_workers), name="rollouts")
            try:
                await self._train_all(collector, workers, evaluations, reporter, stream)
            finally:
                self.stop()
                rolling.cancel()
                await asyncio.wait([rolling])
                for finished in collector.left():
                    stream.give_back(finished.taken)
                await self.save()
            evaluations.end()
            await evaluating
            status.cancel()

    def stop(self) -> None:
        """Take no more scenarios; groups that have begun are finished and trained."""
        self._pace.stop()

    async def _train_all(
        self,
        collector: Collector,
        workers: RolloutWorkers,
        evaluations: Evaluations,
        reporter: StatusReporter,
        stream: ScenarioStream,
    ) -> None:
        most, ended = self._settings.max_steps, False
        while not ended and (most is None or self._steps < most):
            began, busy, idle = time.monotonic(), workers.busy_s, workers.idle_s
            batch = await collector.collect(self.books.training_step)
            ended = batch.ended or collector.collapsed
            if not batch.groups:
                await self._log_aside(batch, self.books.training_step)
                break
            collected = time.monotonic()
            off_policy = batch.steps_off_policy(self.books.training_step)
            try:
                result = await self._train(batch)
            except BaseException:
                for finished in batch.groups:
                    stream.give_back(finished.taken)
                raise
            reporter.step_done(result.step, time.monotonic())
            times = {
                "steps_off_policy": off_policy,
                "time/step_wall_s": time.monotonic() - began,
                "time/step_trainer_s": time.monotonic() - collected,
                "time/step_actor_s": workers.busy_s - busy,
                "throughput/step_trainer_idle_s": collected - began,
                "throughput/step_actor_idle_s": workers.idle_s - idle,
                "pipeline/running_groups": float(workers.running),
            }
            await self._log(batch, result, times)
            await self._after(result.step, evaluations)
        if collector.collapsed:
            self._tell_collapse(collector)

    async def _train(self, batch: StepBatch) -> TrainResult:
        """One training step; what is being trained is written down before, what was trained after."""
        step, groups = self.books.training_step, [one.group for one in batch.groups]
        job_id = uuid4().hex
        self.books.begin(job_id, [one.taken.number for one in batch.groups])
        await self.save()
        saving = self._settings.save_checkpoint and self._settings.is_eval_step(step + 1)
        options = {**self._options, "save_checkpoint": saving}
        if self._ours:
            options |= {
                "discarded_groups": [*batch.of("discarded"), *batch.of("stale"), *batch.of("failed")],
                "max_steps_off_policy": self._settings.max_steps_off_policy,
                "expected_step": step,
                "job_id": job_id,
            }
        self._pace.taken(len(groups))
        self._pace.train(True)
        try:
            result: TrainResult = await self._backend.train(self._model, groups, **options)
        finally:
            self._pace.train(False)
        self.books.end(result.step)
        await self.save()
        return result

    async def _after(self, step: int, evaluations: Evaluations) -> None:
        """What is due after a step: its evaluation, and old checkpoints to delete."""
        now = {SAVED: 1.0, CREATED_AT: time.time()}
        await self._model.log(split=CHECKPOINT, metrics=now, step=step)
        if self._settings.is_eval_step(step):
            evaluations.schedule(step)
            await self.save()
        strategy = self._settings.checkpoint_retention_strategy
        if strategy is not None and self._steps % self._settings.checkpoint_retention_interval == 0:
            await apply_retention(
                self._model,
                self._backend,
                strategy,
                self._settings,
                current=step,
                waiting=self.books.waiting_evals,
            )

    # -- what is told --

    async def _log(self, batch: StepBatch, result: TrainResult, times: Mapping[str, float]) -> None:
        groups = [*(one.group for one in batch.groups), *batch.of("failed")]
        rewards = [one.reward for group in groups for one in group if not isinstance(one.reward, Unscored)]
        self._reward = fmean(rewards) if rewards else None
        outcomes = self.books.outcomes
        counts = {
            "discarded_stale_groups": float(outcomes["stale"]),
            "discarded_groups": float(outcomes["discarded"]),
            "failed_groups": float(outcomes["failed"]),
            "pipeline/queued_groups": float(self._queue.qsize()),
        }
        metrics = {**times, **counts, **result.metrics}
        await self._model.log(groups, split="train", metrics=metrics, step=result.step)
        await self._log_aside(batch, result.step)

    async def _log_aside(self, batch: StepBatch, step: int) -> None:
        discarded: list[TrajectoryGroup] = batch.of("discarded")[:LOGGED_DISCARDED]
        if discarded:
            await self._model.log(discarded, split="discarded", step=step)

    def _tell_collapse(self, collector: Collector) -> None:
        failed = collector.last_failure
        errors = [] if failed is None else failed.group.exceptions
        last = f"; the last one failed: {errors[0].type} {errors[0].message}" if errors else ""
        _log.error(
            "MODEL COLLAPSE DETECTED: %d groups in a row had equal rewards or failed, more than "
            "discard_queue_multiplier x min_batch_size = %d; the run of %s ends at step %d%s",
            collector.useless,
            self._settings.collapse_after,
            self._model.name,
            self.books.training_step,
            last,
        )

    def _status(self, workers: RolloutWorkers) -> Status:
        outcomes, most = self.books.outcomes, self._settings.max_steps
        return Status(
            step=self._steps,
            max_steps=most,
            settled=self.books.settled,
            running=workers.running,
            queued=self._queue.qsize(),
            discarded=outcomes["discarded"],
            stale=outcomes["stale"],
            failed=outcomes["failed"],
            reward=self._reward,
        )

    # -- small things --

    @property
    def _steps(self) -> int:
        """Training steps of the run so far."""
        return self.books.training_step - self.books.first_step

    def _taken(self, finished: Finished, outcome: Outcome | None) -> None:
        if outcome is not None:  # the others count as ahead until they are being trained
            self._pace.taken()
            self.books.settle(finished.taken.number, outcome)

    def _schedule_first(self, evaluations: Evaluations) -> None:
        """Evaluations that an earlier run did not come to, and that of the start."""
        for step in sorted(self.books.waiting_evals):
            evaluations.schedule(step)
        if self._settings.eval_at_start and not self._steps:
            evaluations.schedule(self.books.first_step)
