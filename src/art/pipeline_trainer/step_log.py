"""The log of a run's steps. The trajectories of a step outlive a kill of the program, and are logged once.

    under_way/<job id>/train/0003.parquet  ->  trajectories/train/0003.parquet

They are written before the training job is asked for, and moved into the log when it has made its step; only
then comes their row in the history. What a kill has cut off, `recover` does in the next run.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from art.folders import get_model_dir, get_trajectories_split_dir
from art.pipeline_trainer.retention import CHECKPOINT_CREATED_AT_METRIC, CHECKPOINT_SAVED_METRIC
from art.tracking.folder_lock import locked
from art.tracking.history import read_rows
from art.tracking.run_log import Entry
from art.tracking.trajectory_log.step_log import log_groups, read_trajectory_groups
from art.trajectories import TrajectoryGroup

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
        entry = Entry(groups=groups, split=split, metrics=metrics, step=step, stored=True)
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
        with locked(folder):
            target = folder / f"{step:04d}{kept.suffix}"
            if not target.exists():
                os.replace(kept, target)
                return
        log_groups(folder, step, read_trajectory_groups(kept))  # the program logs others of its own there
        kept.unlink()

    def _names(self, step: int) -> frozenset[str]:
        """All names in the history's rows of a step."""
        rows = read_rows(Path(get_model_dir(self._model)) / "history.jsonl")
        return frozenset(name for row in rows if row.get("step") == step for name in row)


def _file(folder: Path, stem: str) -> Path | None:
    """The file of a step's groups, if there is one."""
    found = (file for suffix in (".parquet", ".jsonl") for file in folder.glob(f"{stem}{suffix}"))
    return next(found, None)
