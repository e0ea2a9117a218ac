"""Training steps of a run with their state and their log, and what a killed run left of one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from statistics import fmean
from typing import Any
from uuid import uuid4

from art.pipeline_trainer.batch import StepBatch
from art.pipeline_trainer.books import STATE, Books
from art.pipeline_trainer.pace import Pace
from art.pipeline_trainer.settings import PipelineOptions, is_eval_step
from art.pipeline_trainer.step_log import STALE_GROUPS, StepLog
from art.trajectories import TrajectoryGroup
from art.types import TrainResult, Unscored

_log = logging.getLogger(__name__)

LOGGED_DISCARDED = 50
"""Groups of equal rewards that are logged, of one step."""


class TrainingSteps:
    """Each step: written down, trained, logged, and then counted as done in the state."""

    def __init__(
        self,
        model: Any,
        backend: Any,
        settings: PipelineOptions,
        *,
        options: Mapping[str, Any],
        ours: bool,
        pace: Pace,
    ) -> None:
        """options: keywords of `backend.train`. ours: it is a backend of this package, which knows jobs."""
        self._model, self._backend, self._settings = model, backend, settings
        self._options, self._ours, self._pace = options, ours, pace
        self._step_log = StepLog(model)
        self.state = Books()
        self.reward: float | None = None
        """Mean of the last trained batch."""

    @property
    def made(self) -> int:
        """Training steps of the run so far."""
        return self.state.training_step - self.state.first_step

    async def open(self) -> None:
        """Go on from the model's state, or begin. Raises what the backend raises."""
        step = await self._backend.get_step(self._model)
        state = (self._model.read_state() or {}).get(STATE)
        if state is not None:
            self.state = Books.from_dict(state)
            await self._find_job_result(step)
        if state is None or not self._settings["resume"]:
            step = await self._backend.get_step(self._model)
            self.state = Books(first_step=step, training_step=step)
        else:
            _log.info(
                "%s goes on at step %d: %d scenarios are settled",
                self._model.name,
                self.state.training_step,
                self.state.settled,
            )
        await self.save()
        await self._step_log.forget()

    async def _find_job_result(self, step: int) -> None:
        """Find out whether the job that was under way made its step, and log what its run did not."""
        intent, result = self.state.intent, None
        if intent is not None and self._ours:
            result = await self._backend.training_result(self._model, intent.job_id)
        elif intent is not None and step > intent.step:
            result = TrainResult(step)
        if intent is not None and result is not None:
            await self._step_log.recover(intent.job_id, result.step, {**result.metrics, **self._counts()})
            if is_eval_step(self._settings, result.step):
                self.state.waiting_evals.add(result.step)
        elif intent is not None:
            await self._step_log.recover(intent.job_id, intent.step + 1, None)
        self.state.end_job(None if result is None else result.step)
        self.state.training_step = await self._backend.get_step(self._model)

    async def save(self) -> None:
        """Write the run's state into the model's state."""
        await asyncio.to_thread(self._model.merge_state, {STATE: self.state.to_dict()})

    async def train(self, batch: StepBatch) -> TrainResult:
        """One training step; what is being trained is written down before. `log` is to follow."""
        step, groups, job_id = self.state.training_step, [one.group for one in batch.groups], uuid4().hex
        await self._step_log.keep(job_id, step + 1, _logged(batch))
        self.state.begin_job(job_id, [one.taken.number for one in batch.groups])
        await self.save()
        saving = self._settings["save_checkpoint"] and is_eval_step(self._settings, step + 1)
        options = {**self._options, "save_checkpoint": saving}
        if self._ours:
            options |= {
                "discarded_groups": [*batch.of("discarded"), *batch.of("stale"), *batch.of("failed")],
                "max_steps_off_policy": self._settings["max_steps_off_policy"],
                "expected_step": step,
                "job_id": job_id,
            }
        self._pace.taken(len(groups))
        self._pace.train(True)
        try:
            result: TrainResult = await self._backend.train(self._model, groups, **options)
        finally:
            self._pace.train(False)
        self.state.job_made_step(result.step)
        return result

    async def log(self, batch: StepBatch, result: TrainResult, metrics: Mapping[str, float]) -> None:
        """Log the step that `train` made; `finish_step` is to follow."""
        intent, groups = self.state.intent, _logged(batch)
        assert intent is not None
        rewards = [one.reward for group in groups["train"] for one in group]
        scored = [reward for reward in rewards if not isinstance(reward, Unscored)]
        self.reward = fmean(scored) if scored else None
        numbers = {**metrics, **self._counts(), **result.metrics}
        await self._step_log.write(intent.job_id, result.step, numbers, groups)

    async def finish_step(self, step: int) -> None:
        """The step is made and logged: its scenarios have met their end."""
        self.state.end_job(step)
        await self.save()

    async def log_discarded(self, batch: StepBatch) -> None:
        """Those of the end, which have no step of their own."""
        if discarded := _logged(batch)["discarded"]:
            await self._model.log(discarded, split="discarded", step=self.state.training_step)

    def _counts(self) -> dict[str, float]:
        outcomes = self.state.outcomes
        return {
            STALE_GROUPS: float(outcomes["stale"]),
            "discarded_groups": float(outcomes["discarded"]),
            "failed_groups": float(outcomes["failed"]),
        }


def _logged(batch: StepBatch) -> dict[str, list[TrajectoryGroup]]:
    """The groups of a step's log, by split."""
    return {
        "train": [*(one.group for one in batch.groups), *batch.of("failed")],
        "discarded": batch.of("discarded")[:LOGGED_DISCARDED],
    }
