"""Training steps of a pipeline run: each is written down, trained, logged, and then counted as done.

The trajectories of a step outlive a kill of the program, and are logged once.

    under_way/<job id>/train/0003.parquet  ->  trajectories/train/0003.parquet

They are written before the training job is asked for, and moved into the log when it has made its step;
only then comes their row in the history. What a kill has cut off, `recover` does in the next run.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any
from uuid import uuid4

from art.runs.pipeline.batch import CollectedGroups
from art.runs.pipeline.pipeline_state import STATE_KEY, PipelineState, RolloutPace
from art.runs.pipeline.settings import (
    CHECKPOINT_CREATED_AT_METRIC,
    CHECKPOINT_SAVED_METRIC,
    PipelineOptions,
    is_eval_step,
)
from art.tracking.folders import get_model_dir, get_trajectories_split_dir, lock_folder
from art.tracking.model_files import read_history
from art.tracking.run_log import LogEntry
from art.tracking.trajectory_log import log_groups, read_trajectory_groups
from art.trajectories import TrajectoryGroup
from art.types import TrainResult, Unscored

STALE_GROUPS = "discarded_stale_groups"
"""The count that the row of each step has, and no other."""
CHECKPOINT, SAVED = CHECKPOINT_SAVED_METRIC.split("/")
CREATED_AT = CHECKPOINT_CREATED_AT_METRIC.split("/")[1]


class StepLog:
    """Of one model. Methods are safe to repeat after a kill in any of them."""

    def __init__(self, model: Any) -> None:
        self._model = model

    async def keep(self, job_id: str, step: int, groups: Mapping[str, list[TrajectoryGroup]]) -> None:
        """Write the groups of each split down for a job that is to make `step`."""
        for split, some in groups.items():
            if some:
                await asyncio.to_thread(log_groups, self._kept(job_id) / split, step, some)

    async def write(
        self,
        job_id: str,
        step: int,
        metrics: Mapping[str, float],
        groups: Mapping[str, list[TrajectoryGroup]],
    ) -> None:
        """Log what was kept for the job that made `step`. metrics: of the row of split train."""
        for split, some in groups.items():
            await asyncio.to_thread(self._move, job_id, split, step)
            if some:
                await self._row(split, step, metrics if split == "train" else {}, some)
        await self._checkpoint(step)
        await self._drop(job_id)

    async def recover(self, job_id: str, step: int, metrics: Mapping[str, float] | None) -> None:
        """`write` for the job of a killed run, which may have done a part of it.

        metrics None: the job made no step. What it was to train is dropped, for it is sampled again.
        """
        names = await asyncio.to_thread(self._names, step)
        for split, mark in (("train", f"train/{STALE_GROUPS}"), ("discarded", "discarded/")):
            if split == "train" and metrics is None:
                continue
            groups = await asyncio.to_thread(self._groups, job_id, split, step)
            await asyncio.to_thread(self._move, job_id, split, step)
            numbers = metrics or {} if split == "train" else {}
            if (groups or numbers) and not any(name.startswith(mark) for name in names):
                await self._row(split, step, numbers, groups)
        if metrics is not None and CHECKPOINT_SAVED_METRIC not in names:
            await self._checkpoint(step)
        await self._drop(job_id)

    async def forget(self) -> None:
        """Drop what was kept for jobs that were never asked for."""
        await self._drop("")

    async def _row(
        self, split: str, step: int, metrics: Mapping[str, float], groups: list[TrajectoryGroup]
    ) -> None:
        entry = LogEntry(groups=groups, split=split, metrics=metrics, step=step, stored=True)
        await asyncio.to_thread(self._model._run_log.write, self._model, entry)

    async def _checkpoint(self, step: int) -> None:
        now = {SAVED: 1.0, CREATED_AT: time.time()}
        await self._model.log(split=CHECKPOINT, metrics=now, step=step)

    async def _drop(self, job_id: str) -> None:
        await asyncio.to_thread(shutil.rmtree, self._kept(job_id), ignore_errors=True)

    def _kept(self, job_id: str) -> Path:
        return Path(get_model_dir(self._model)) / "under_way" / job_id

    def _logged(self, split: str) -> Path:
        return Path(get_trajectories_split_dir(get_model_dir(self._model), split))

    def _groups(self, job_id: str, split: str, step: int) -> list[TrajectoryGroup]:
        """Those kept for a job, in the log if they were moved there."""
        file = _file(self._kept(job_id) / split, "*") or _file(self._logged(split), f"{step:04d}")
        return read_trajectory_groups(file) if file else []

    def _move(self, job_id: str, split: str, step: int) -> None:
        """Move a split's file into the log, if that was not done."""
        kept, folder = _file(self._kept(job_id) / split, "*"), self._logged(split)
        if kept is None:
            return
        with lock_folder(folder):
            target = folder / f"{step:04d}{kept.suffix}"
            if not target.exists():
                os.replace(kept, target)
                return
        log_groups(folder, step, read_trajectory_groups(kept))  # the program logs others of its own there
        kept.unlink()

    def _names(self, step: int) -> frozenset[str]:
        """All names in the history's rows of a step."""
        rows = read_history(Path(get_model_dir(self._model)) / "history.jsonl")
        return frozenset(name for row in rows if row.get("step") == step for name in row)


def _file(folder: Path, stem: str) -> Path | None:
    """The file of a step's groups, if there is one."""
    found = (file for suffix in (".parquet", ".jsonl") for file in folder.glob(f"{stem}{suffix}"))
    return next(found, None)


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
        pace: RolloutPace,
    ) -> None:
        """options: keywords of `backend.train`. ours: it is a backend of this package, which knows jobs."""
        self._model, self._backend, self._settings = model, backend, settings
        self._options, self._ours, self._pace = options, ours, pace
        self._step_log = StepLog(model)
        self.state = PipelineState()
        self.reward: float | None = None
        """Mean of the last trained batch."""

    @property
    def made(self) -> int:
        """Training steps of the run so far."""
        return self.state.training_step - self.state.first_step

    async def open(self) -> None:
        """Go on from the model's state, or begin. Raises what the backend raises."""
        step = await self._backend.get_step(self._model)
        state = (self._model.read_state() or {}).get(STATE_KEY)
        if state is not None:
            self.state = PipelineState.from_dict(state)
            await self._find_job_result(step)
        if state is None or not self._settings["resume"]:
            step = await self._backend.get_step(self._model)
            self.state = PipelineState(first_step=step, training_step=step)
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
        await asyncio.to_thread(self._model.merge_state, {STATE_KEY: self.state.to_dict()})

    async def train(self, batch: CollectedGroups) -> TrainResult:
        """One training step; what is being trained is written down before. `log` is to follow."""
        step, groups, job_id = self.state.training_step, [one.group for one in batch.groups], uuid4().hex
        await self._step_log.keep(job_id, step + 1, _groups_to_log(batch))
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

    async def log(self, batch: CollectedGroups, result: TrainResult, metrics: Mapping[str, float]) -> None:
        """Log the step that `train` made; `finish_step` is to follow."""
        intent, groups = self.state.intent, _groups_to_log(batch)
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

    async def log_discarded(self, batch: CollectedGroups) -> None:
        """Those of the end, which have no step of their own."""
        if discarded := _groups_to_log(batch)["discarded"]:
            await self._model.log(discarded, split="discarded", step=self.state.training_step)

    def _counts(self) -> dict[str, float]:
        outcomes = self.state.outcomes
        return {
            STALE_GROUPS: float(outcomes["stale"]),
            "discarded_groups": float(outcomes["discarded"]),
            "failed_groups": float(outcomes["failed"]),
        }


def _groups_to_log(batch: CollectedGroups) -> dict[str, list[TrajectoryGroup]]:
    """The groups of a step's log, by split."""
    return {
        "train": [*(one.group for one in batch.groups), *batch.of("failed")],
        "discarded": batch.of("discarded")[:LOGGED_DISCARDED],
    }
