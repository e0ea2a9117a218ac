"""The log of a model's steps: each has its groups and its row in the history once, wherever a program ended.

    under_way/<job id>/train/0003.parquet  ->  trajectories/train/0003.parquet

What a training job is to log is written down before the job is asked for, and moved into the log when the job
has made its step; only then comes the row in the history. `StepLog` is for runs, which note their own jobs.
`TrainLog` is for `model.train`: a job's folder is its note, and the lock in it says that its program lives.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from art.process.files import find_named, make_private_folder, take_lock
from art.tracking.folders import ModelPaths, lock_folder
from art.tracking.model_files import read_history
from art.tracking.run_log import LogEntry
from art.tracking.trajectory_log import log_groups, read_trajectory_groups
from art.trajectories import TrajectoryGroup
from art.types import TrainResult

_OWNER = ".owner"
"""The file in a job's folder that its program locks."""

_log = logging.getLogger(__name__)


class StepLog:
    """The log of one model's steps. Methods are safe to repeat after a kill in any of them."""

    ROW_MARKS: ClassVar[Mapping[str, tuple[str, ...]]] = {"train": ("train/", "data/")}
    """The beginnings of names that only the row of a step has, by split."""

    def __init__(self, model: Any) -> None:
        self._model = model

    async def keep(self, job_id: str, step: int, groups: Mapping[str, list[TrajectoryGroup]]) -> None:
        """Write the groups of each split down for a job that is to make `step`."""
        for split, some in groups.items():
            if some:
                await asyncio.to_thread(log_groups, self._job_folder(job_id) / split, step, some)

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
            numbers = metrics if split == "train" else {}
            if some or numbers:
                await self._row(split, step, numbers, some)
        await self._after_rows(step)
        await self._delete_job(job_id)

    async def recover(self, job_id: str, step: int, metrics: Mapping[str, float] | None) -> None:
        """`write` for the job of a killed run, which may have done a part of it.

        metrics None: the job made no step. What it was to train is dropped, for it is sampled again.
        """
        names = await asyncio.to_thread(self.numbers, step)
        for split, marks in self.ROW_MARKS.items():
            if split == "train" and metrics is None:
                continue
            groups = await asyncio.to_thread(self._read_groups, job_id, split, step)
            await asyncio.to_thread(self._move, job_id, split, step)
            numbers = metrics or {} if split == "train" else {}
            if (groups or numbers) and not any(name.startswith(marks) for name in names):
                await self._row(split, step, numbers, groups)
        if metrics is not None:
            await self._after_rows(step, names)
        await self._delete_job(job_id)

    async def forget(self) -> None:
        """Drop what was kept for jobs that were never asked for."""
        for job_id in await asyncio.to_thread(self._kept_jobs, with_owner=False):
            await self._delete_job(job_id)
        with suppress(OSError):  # there is none, or one of `TrainLog`
            self._job_folder("any").parent.rmdir()

    async def _row(
        self, split: str, step: int, metrics: Mapping[str, float], groups: list[TrajectoryGroup]
    ) -> None:
        entry = LogEntry(groups=groups or None, split=split, metrics=metrics, step=step, stored=True)
        await asyncio.to_thread(self._model._run_log.write, self._model, entry)

    async def _after_rows(self, step: int, logged: Collection[str] = ()) -> None:
        """Logs the further rows of a kind of run for a step. logged: names that its rows have already."""

    async def _delete_job(self, job_id: str) -> None:
        await asyncio.to_thread(shutil.rmtree, self._job_folder(job_id), ignore_errors=True)

    def _kept_jobs(self, *, with_owner: bool) -> list[str]:
        """Returns the jobs that something is kept for: those of `TrainLog`, or those of runs."""
        folders = self._job_folder("any").parent
        found = sorted(folders.iterdir()) if folders.is_dir() else []
        return [one.name for one in found if (one / _OWNER).exists() == with_owner]

    def _job_folder(self, job_id: str) -> Path:
        return ModelPaths.of_model(self._model).under_way(job_id)

    def _split_folder(self, split: str) -> Path:
        return ModelPaths.of_model(self._model).trajectories / split

    def _read_groups(self, job_id: str, split: str, step: int) -> list[TrajectoryGroup]:
        """Returns the groups kept for a job, from the log if they were moved there."""
        file = _file(self._job_folder(job_id) / split) or _file(self._split_folder(split), f"{step:04d}")
        return read_trajectory_groups(file) if file else []

    def _move(self, job_id: str, split: str, step: int) -> None:
        """Move a split's file into the log, if that was not done."""
        job_file, folder = _file(self._job_folder(job_id) / split), self._split_folder(split)
        if job_file is None:
            return
        with lock_folder(folder):
            target = folder / f"{step:04d}{job_file.suffix}"
            if not target.exists():
                os.replace(job_file, target)
                return
        log_groups(folder, step, read_trajectory_groups(job_file))  # the program logs others of its own there
        job_file.unlink()

    def numbers(self, step: int) -> dict[str, Any]:
        """All that the history's rows of a step say."""
        rows = read_history(ModelPaths.of_model(self._model).history, steps=(step,))
        return {name: value for row in rows if row.get("step") == step for name, value in row.items()}


class TrainLog(StepLog):
    """The log of the steps of `model.train` and `model.train_sft`."""

    ROW_MARKS: ClassVar[Mapping[str, tuple[str, ...]]] = {"train": ("data/sheet/",)}
    """Programs log other numbers of split train."""

    @asynccontextmanager
    async def under_way(self, job_id: str, groups: list[TrajectoryGroup]) -> AsyncIterator[None]:
        """Keeps what a new job is to log. While the block runs the job is this program's; `finish` logs the
        step if the block, or the program, ended before that.
        """
        lock = await asyncio.to_thread(self._lock_new, job_id)
        try:
            await self.keep(job_id, 0, {"train": groups})
            yield
        finally:
            if lock is not None:
                os.close(lock)

    async def finish(self, result_of: Callable[[str], Awaitable[TrainResult | None]]) -> None:
        """Logs the steps of jobs that no program waits for any more. What cannot be logged keeps nobody from
        going on.

        result_of: the result of a job; None: it made no step. Raises what it raises.
        """
        if os.name != "posix":  # no lock tells which programs live
            return
        for job_id in await asyncio.to_thread(self._kept_jobs, with_owner=True):
            lock = await asyncio.to_thread(self._lock_abandoned, job_id)
            if lock is None:
                continue
            try:
                await self._finish_job(job_id, await result_of(job_id))
            finally:
                os.close(lock)

    async def _finish_job(self, job_id: str, result: TrainResult | None) -> None:
        made = 0 if result is None else result.step
        owner = self._job_folder(job_id) / _OWNER
        try:
            await self.recover(job_id, made, None if result is None else result.metrics)
        except Exception as error:  # noqa: BLE001 - the log of an old step must not stop the program
            _log.warning("step %d is not logged, what it trained is in %s: %s", made, owner.parent, error)
            if isinstance(error, TypeError | ValueError):  # refused, now and later
                owner.unlink(missing_ok=True)
            return
        if result is not None:
            name = self._model.name
            _log.info("%s: step %d was made after its program had stopped; it is logged now", name, made)

    def _lock_new(self, job_id: str) -> int | None:
        folder = self._job_folder(job_id)
        make_private_folder(folder)
        return take_lock(folder / _OWNER)

    def _lock_abandoned(self, job_id: str) -> int | None:
        """Locks a job of nobody; None: somebody has it, or has just logged it."""
        try:
            return take_lock(self._job_folder(job_id) / _OWNER)
        except FileNotFoundError:
            return None


def _file(folder: Path, stem: str = "") -> Path | None:
    """The file of a step's groups, if there is one: by its step, or the first."""
    for suffix in (".parquet", ".jsonl"):
        found = [folder / f"{stem}{suffix}"] if stem else find_named(folder, "", suffix)
        if found and found[0].exists():
            return found[0]
    return None
