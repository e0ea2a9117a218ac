"""A run that dies where it is told to: `python interrupted.py FOLDER POINT`.

Its backend keeps its jobs in a file, as a server does: they survive the process. POINT: "committed" (the
step is there, its answer is not), "logged" (the answer too, its row is not), "never".
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import art
from art.rewards.function_reward import FunctionReward
from art.runs.environment_run import EnvironmentSettings
from art.runs.folder import JudgedRunFolder, StepRow
from art.runs.training_run import TaskRollouts, TrainingRun
from art.types import TrainResult

DEADLY = 2
"""The step that the process dies at."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Forgetful:
    """Trains in a moment; a program's own backend, which cannot be asked about a job."""

    def __init__(self, file: Path, *, die_after_commit: bool) -> None:
        self._file, self._die = file, die_after_commit

    def jobs(self) -> dict[str, int]:
        return json.loads(self._file.read_text()) if self._file.is_file() else {}

    async def register(self, model: Any) -> None:
        model.inference_base_url, model.inference_api_key = "http://127.0.0.1:1/v1", "k"

    async def get_step(self, model: Any) -> int:
        return len(self.jobs())

    async def train(self, model: Any, groups: Iterable[Any], **options: Any) -> TrainResult:
        jobs = self.jobs()
        name = options.get("job_id", f"job {len(jobs)}")
        assert name not in jobs and options.get("expected_step", len(jobs)) == len(jobs)
        self._file.write_text(json.dumps({**jobs, name: len(jobs) + 1}))
        if self._die and len(jobs) + 1 == DEADLY:
            die()
        return self.result(name)

    def result(self, job_id: str) -> TrainResult:
        step = self.jobs()[job_id]
        return TrainResult(step, {"data/sheet/trained_rollouts": 10.0 + step})


class FileBackend(Forgetful):
    """With all the names of ours."""

    async def training_result(self, model: Any, job_id: str) -> TrainResult | None:
        return self.result(job_id) if job_id in self.jobs() else None

    async def train_sft(self, *_: Any, **__: Any) -> TrainResult:
        raise NotImplementedError

    async def delete_checkpoints(self, *_: Any) -> list[int]:
        raise NotImplementedError

    def openai_client(self, model: Any) -> Any:
        raise NotImplementedError

    async def close(self) -> None: ...


class DyingFolder(JudgedRunFolder):
    def add_step(self, row: StepRow) -> None:
        if row.step == DEADLY:
            die()
        super().add_step(row)


class Good(TaskRollouts[str]):
    async def rollout(self, task: str, *, seed: int | None) -> art.Trajectory:
        return art.Trajectory(reward=0.25, metrics={"turns": 1})

    def text_of(self, task: str) -> str:
        return task

    def figures_of(self, trajectory: art.Trajectory) -> Mapping[str, float]:
        return {"turns": 1.0}


async def run(path: Path, point: str, *, answers: bool = True) -> list[str]:
    """What was told."""
    told: list[str] = []
    model = art.TrainableModel(name="n", project="p", base_model="b", base_path=str(path))
    kind = FileBackend if answers else Forgetful
    backend: Any = kind(path / "jobs.json", die_after_commit=point == "committed")
    await model.register(backend)
    folder = (DyingFolder if point == "logged" else JudgedRunFolder)(path / "run")
    folder.path.mkdir(exist_ok=True)
    judge = FunctionReward(lambda trajectory: 0.5, name="half")
    training = TrainingRun(
        folder=folder,
        rollouts=Good(model, EnvironmentSettings(steps=3, groups_per_step=1, group_size=4)),
        train=["a", "b"],
        test=["c"],
        judge=judge,
        referee=judge,
        measure=None,
        tell=told.append,
    )
    await training.run()
    return told


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), sys.argv[2], answers=len(sys.argv) < 4))
