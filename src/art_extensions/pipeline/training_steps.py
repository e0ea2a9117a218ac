"""Training steps of a pipeline run: made and logged by the loop of every run, then counted as done."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from statistics import fmean
from typing import Any, ClassVar
from uuid import uuid4

from art.runs.folder import StepUnderWay
from art.runs.loop import JobTraining
from art.tracking.rollout_figures import scores
from art.tracking.step_log import StepLog
from art.trajectories import TrajectoryGroup
from art.types import TrainResult
from art_extensions.pipeline.batch import CollectedGroups
from art_extensions.pipeline.pipeline_state import STATE_KEY, PipelineState, RolloutPace
from art_extensions.pipeline.settings import (
    CHECKPOINT_CREATED_AT_METRIC,
    CHECKPOINT_SAVED_METRIC,
    PipelineOptions,
    is_eval_step,
)

STALE_GROUPS = "discarded_stale_groups"
"""The count that the row of each step has, and no other."""
REWARD_OF_ALL = "reward_all_rollouts"
CHECKPOINT, SAVED = CHECKPOINT_SAVED_METRIC.split("/")
CREATED_AT = CHECKPOINT_CREATED_AT_METRIC.split("/")[1]


class PipelineStepLog(StepLog):
    """The log of a pipeline's steps, with the discarded groups and a row for the checkpoint."""

    ROW_MARKS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "train": (f"train/{STALE_GROUPS}",),  # programs log other numbers of split train
        "discarded": ("discarded/",),
    }

    async def _after_rows(self, step: int, logged: Collection[str] = ()) -> None:
        if CHECKPOINT_SAVED_METRIC not in logged:
            now = {SAVED: 1.0, CREATED_AT: time.time()}
            await self._model.log(split=CHECKPOINT, metrics=now, step=step)


_log = logging.getLogger("art.runs.pipeline")  # below `art`, so that `show_log` shows its lines

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
        is_art_backend: bool,
        pace: RolloutPace,
    ) -> None:
        """options: keywords of `backend.train`. is_art_backend: one of this package, which knows jobs."""
        self._model, self._backend, self._settings = model, backend, settings
        self._options, self._is_art_backend, self._pace = options, is_art_backend, pace
        self._training = JobTraining(model, PipelineStepLog(model))
        self.state, self._saving = PipelineState(), asyncio.Lock()
        self.reward: float | None = None
        """Mean over all rollouts of the last step."""

    @property
    def made(self) -> int:
        """Training steps of the run so far."""
        return self.state.training_step - self.state.first_step

    async def open(self) -> None:
        """Resumes from the model's state, or starts. Raises the backend's errors."""
        state = (self._model.read_state() or {}).get(STATE_KEY)
        if state is not None:
            self.state = PipelineState.from_dict(state)
            await self._find_job_result()
        if state is None or not self._settings["resume"]:
            step = await self._backend.get_step(self._model)
            self.state = PipelineState(first_step=step, training_step=step)
        else:
            _log.info(
                "%s goes on at step %d: %d scenarios are done",
                self._model.name,
                self.state.training_step,
                self.state.settled_scenarios,
            )
        await self.save()
        await self._training.log.forget()

    async def _find_job_result(self) -> None:
        """Find out whether the job that was under way made its step, and log what its run did not."""
        result = await self._training.finish_interrupted(self.state.under_way, self._counts())
        if result is not None and is_eval_step(self._settings, result.step):
            self.state.waiting_evals.add(result.step)
        self.state.end_job(None if result is None else result.step)
        self.state.training_step = await self._backend.get_step(self._model)

    async def save(self) -> None:
        """Write the run's state into the model's state: steps and evaluations do so beside each other, and an
        older state must not come last.
        """
        async with self._saving:
            await asyncio.to_thread(self._model.merge_state, {STATE_KEY: self.state.to_dict()})

    async def train(self, batch: CollectedGroups) -> TrainResult:
        """One training step; what is being trained is written down before. `log` is to follow."""
        step, groups = self.state.training_step, [one.group for one in batch.groups]
        saving = self._settings["save_checkpoint"] and is_eval_step(self._settings, step + 1)
        options = {**self._options, "save_checkpoint": saving}
        if self._is_art_backend:
            options |= {
                "discarded_groups": [
                    *batch.untrained("discarded"),
                    *batch.untrained("stale"),
                    *batch.untrained("failed"),
                ],
                "max_steps_off_policy": self._settings["max_steps_off_policy"],
            }

        async def save(begun: StepUnderWay) -> None:
            self.state.under_way = begun
            await self.save()
            self._pace.take_groups(len(groups))
            self._pace.train(True)

        known = {"scenarios": [one.numbered.number for one in batch.groups], **_reward_of_all(batch)}
        begun = StepUnderWay(job_id=uuid4().hex, step=step, known=known)
        try:
            result = await self._training.train(
                begun, groups, logged=_groups_to_log(batch), save=save, options=options
            )
        finally:
            self._pace.train(False)
        self.state.training_step = result.step  # it is not logged yet
        return result

    async def log(self, batch: CollectedGroups, result: TrainResult, metrics: Mapping[str, float]) -> None:
        """Log the step that `train` made; `finish_step` is to follow."""
        begun, groups = self.state.under_way, _groups_to_log(batch)
        assert begun is not None
        self.reward = begun.known.get(REWARD_OF_ALL)
        numbers = {**metrics, **self._counts(), **result.metrics}
        await self._training.log.write(begun.job_id, result.step, numbers, groups)

    async def finish_step(self, step: int) -> None:
        """The step is made and logged: its scenarios have met their end."""
        self.state.end_job(step)
        await self.save()

    def coming_references(self, step: int) -> set[int]:
        """The steps that KL penalties of later steps compare with."""
        lag, every = self._options.get("kl_penalty_step_lag") or 0, self._options.get("kl_penalty_sync_steps")
        last = {step - step % every} if every else set()
        return last | {max(0, one - lag) for one in range(step, step + lag)}

    async def log_discarded(self, batch: CollectedGroups) -> None:
        """Logs the discarded groups after the last step."""
        if discarded := _groups_to_log(batch)["discarded"]:
            await self._model.log(discarded, split="discarded", step=self.state.training_step)

    def _counts(self) -> dict[str, float]:
        outcomes, begun = self.state.outcomes, self.state.under_way
        of_all = None if begun is None else begun.known.get(REWARD_OF_ALL)
        return {
            **({} if of_all is None else {REWARD_OF_ALL: of_all}),
            STALE_GROUPS: float(outcomes["stale"]),
            "discarded_groups": float(outcomes["discarded"]),
            "failed_groups": float(outcomes["failed"]),
        }


def _reward_of_all(batch: CollectedGroups) -> dict[str, float]:
    """The mean reward of all rollouts that came for a step. Those of its trained groups alone, which had
    better and worse ones, are `reward`: a policy that gets better has fewer of them, and `reward` stays.
    """
    groups = [*(one.group for one in batch.groups), *batch.untrained("discarded"), *batch.untrained("stale")]
    known = [reward for group in groups for reward in scores(group)]
    return {REWARD_OF_ALL: fmean(known)} if known else {}


def _groups_to_log(batch: CollectedGroups) -> dict[str, list[TrajectoryGroup]]:
    """The groups of a step's log, by split."""
    return {
        "train": [*(one.group for one in batch.groups), *batch.untrained("failed")],
        "discarded": batch.untrained("discarded")[:LOGGED_DISCARDED],
    }
