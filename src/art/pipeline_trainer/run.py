"""One run of a `PipelineTrainer`: rollouts, training and evaluations side by side.

    scenarios -> workers (paced) -> queue -> batch -> backend.train -> newest step -> workers

Workers and trainer meet at the queue alone; the pace keeps the first from running too far ahead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from art.pipeline_trainer.batch import Collector
from art.pipeline_trainer.books import Books, Outcome
from art.pipeline_trainer.checkpoints import apply_retention
from art.pipeline_trainer.evaluation import Evaluations
from art.pipeline_trainer.pace import Pace
from art.pipeline_trainer.rollout import EvalFn, RolloutFn
from art.pipeline_trainer.rollouts import Finished, RolloutWorkers
from art.pipeline_trainer.scenarios import ScenarioStream
from art.pipeline_trainer.settings import PipelineOptions, is_eval_step, queue_size
from art.pipeline_trainer.status import Status, StatusReporter
from art.pipeline_trainer.steps import TrainingSteps


class Run:
    """From `open` to the end of `train`; used once."""

    def __init__(
        self,
        model: Any,
        backend: Any,
        settings: PipelineOptions,
        *,
        options: Mapping[str, Any],
        ours: bool,
        needs_spread: bool,
    ) -> None:
        """options: keywords of `backend.train`. ours: it is a backend of this package, which knows jobs."""
        self._model, self._backend, self._settings = model, backend, settings
        self._needs_spread = needs_spread
        self._pace = Pace(batch=settings["min_batch_size"], most_steps=settings["max_steps_off_policy"])
        self._queue: asyncio.Queue[Finished | None] = asyncio.Queue(queue_size(settings))
        self._steps = TrainingSteps(model, backend, settings, options=options, ours=ours, pace=self._pace)

    @property
    def _state(self) -> Books:
        return self._steps.state

    async def open(self) -> None:
        """Go on from the model's state, or begin. Raises what the backend raises."""
        await self._steps.open()

    async def train(
        self,
        stream: ScenarioStream,
        rollout_fn: RolloutFn[Any, Any],
        eval_fn: EvalFn[Any] | None,
        config: Any,
        reporter: StatusReporter,
    ) -> None:
        """Until the scenarios or the steps end, somebody asks to stop, or groups teach nothing any more."""
        workers = RolloutWorkers(
            self._model,
            rollout_fn,
            config,
            stream=stream,
            state=self._state,
            pace=self._pace,
            queue=self._queue,
            version=lambda: self._state.training_step,
        )
        evaluations = Evaluations(
            self._model, self._backend, eval_fn, config, state=self._state, save=self._steps.save
        )
        self._schedule_first(evaluations)
        collector = Collector(self._queue, self._settings, needs_spread=self._needs_spread, taken=self._taken)
        async with asyncio.TaskGroup() as tasks:
            status = tasks.create_task(reporter.run(lambda: self._status(workers)), name="status")
            evaluating = tasks.create_task(evaluations.run(), name="evaluations")
            rolling = tasks.create_task(workers.run(self._settings["num_rollout_workers"]), name="rollouts")
            try:
                await self._train_all(collector, workers, evaluations, reporter, stream)
            finally:
                self.stop()
                rolling.cancel()
                await asyncio.wait([rolling])
                for finished in collector.left():
                    stream.give_back(finished.taken)
                await self._steps.save()
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
        most, ended = self._settings["max_steps"], False
        while not ended and (most is None or self._steps.made < most):
            began, busy, idle = time.monotonic(), workers.busy_s, workers.idle_s
            batch = await collector.collect(self._state.training_step)
            ended = batch.ended or collector.exhausted
            if not batch.groups:
                await self._steps.log_discarded(batch)
                break
            collected = time.monotonic()
            off_policy = batch.steps_off_policy(self._state.training_step)
            try:
                result = await self._steps.train(batch)
            except BaseException:
                for finished in batch.groups:
                    stream.give_back(finished.taken)
                raise
            reporter.step_done(result.step, time.monotonic())
            metrics = {
                "steps_off_policy": off_policy,
                "time/step_wall_s": time.monotonic() - began,
                "time/step_trainer_s": time.monotonic() - collected,
                "time/step_actor_s": workers.busy_s - busy,
                "throughput/step_trainer_idle_s": collected - began,
                "throughput/step_actor_idle_s": workers.idle_s - idle,
                "pipeline/running_groups": float(workers.running),
                "pipeline/queued_groups": float(self._queue.qsize()),
            }
            await self._steps.log(batch, result, metrics)
            await self._after(result.step, evaluations)
        if collector.exhausted:
            collector.tell_end(self._model.name, self._state.training_step)

    async def _after(self, step: int, evaluations: Evaluations) -> None:
        """What is due after a step: the entry in the state, its evaluation, and old checkpoints to delete."""
        if is_eval_step(self._settings, step):
            evaluations.schedule(step)
        await self._steps.finish_step(step)
        strategy = self._settings["checkpoint_retention_strategy"]
        if strategy is not None and self._steps.made % self._settings["checkpoint_retention_interval"] == 0:
            await apply_retention(
                self._model,
                self._backend,
                strategy,
                self._settings,
                current=step,
                waiting=self._state.waiting_evals,
            )

    def _status(self, workers: RolloutWorkers) -> Status:
        outcomes, most = self._state.outcomes, self._settings["max_steps"]
        return Status(
            step=self._steps.made,
            max_steps=most,
            settled=self._state.settled,
            running=workers.running,
            queued=self._queue.qsize(),
            discarded=outcomes["discarded"],
            stale=outcomes["stale"],
            failed=outcomes["failed"],
            failed_evals=len(self._state.failed_evals),
            reward=self._steps.reward,
        )

    def _taken(self, finished: Finished, outcome: Outcome | None) -> None:
        if outcome is not None:  # the others count as ahead until they are being trained
            self._pace.taken()
            self._state.record_outcome(finished.taken.number, outcome)

    def _schedule_first(self, evaluations: Evaluations) -> None:
        """Evaluations that an earlier run did not come to, and that of the start."""
        for step in sorted(self._state.waiting_evals):
            evaluations.schedule(step)
        if self._settings["eval_at_start"] and not self._steps.made:
            evaluations.schedule(self._state.first_step)
