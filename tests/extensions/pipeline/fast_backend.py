"""A backend without a model: it trains in a moment, remembers everything, and fails on request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import art
from art.errors import RequestError
from art.types import TrainResult


class FastBackend:
    """`training_result`, `adapter_lease` and `checkpoint_steps` as ours have them.

    file: jobs and steps survive the process there.
    """

    def __init__(self, file: Path | None = None, *, seconds: float = 0.0) -> None:
        self.file, self.seconds = file, seconds
        self.calls: list[dict[str, Any]] = []
        self.leased: list[int] = []
        self.checkpoints = [0]
        self.die_after_commit = False
        self.training = asyncio.Event()
        self.allowed = asyncio.Event()
        self.allowed.set()
        self.jobs: dict[str, dict[str, Any]] = {}
        if file is not None and file.exists():
            self.jobs = json.loads(file.read_text())
            self.checkpoints = [0, *(job["step"] for job in self.jobs.values())]

    async def register(self, model: Any) -> None:
        model.inference_base_url, model.inference_api_key = "http://127.0.0.1:1/v1", "k"
        model.inference_model_name = model.name

    async def get_step(self, model: Any) -> int:
        return max(self.checkpoints)

    async def train(self, model: Any, trajectory_groups: Iterable[Any], **options: Any) -> TrainResult:
        groups, step = list(trajectory_groups), max(self.checkpoints)
        self.calls.append({"groups": groups, "step": step, **options})
        if options["expected_step"] != step:
            raise RequestError("another step", status=409)
        self.training.set()
        await self.allowed.wait()
        await asyncio.sleep(self.seconds)
        self.training.clear()
        self.checkpoints.append(step + 1)
        scenarios = [group.metadata.get("scenario_id") for group in groups]
        self.jobs[options["job_id"]] = {"step": step + 1, "scenarios": scenarios}
        if self.file is not None:
            half = self.file.with_suffix(".new")
            half.write_text(json.dumps(self.jobs))
            half.replace(self.file)  # who reads it, or kills us, meets no half of it
        if self.die_after_commit:
            raise ConnectionError("the reply was lost")
        return TrainResult(step + 1, {"loss/train": 0.5})

    async def training_result(self, model: Any, job_id: str) -> TrainResult | None:
        job = self.jobs.get(job_id)
        return None if job is None else TrainResult(job["step"], {"loss/train": 0.5})

    async def checkpoint_steps(self, model: Any) -> list[int]:
        return sorted(self.checkpoints)

    async def delete_checkpoints(self, model: Any, keep_steps: Iterable[int]) -> list[int]:
        keep = {*keep_steps, max(self.checkpoints)}
        gone = [step for step in self.checkpoints if step not in keep]
        self.checkpoints = [step for step in self.checkpoints if step in keep]
        return gone

    @asynccontextmanager
    async def adapter_lease(self, model: Any, step: int) -> Any:
        self.leased.append(step)
        yield

    async def train_sft(self, *_: Any, **__: Any) -> TrainResult:
        raise NotImplementedError

    def openai_client(self, model: Any) -> Any:
        raise NotImplementedError

    async def close(self) -> None: ...

    def trained(self) -> list[int]:
        """Scenario ids, in the order of training."""
        return [scenario for job in self.jobs.values() for scenario in job["scenarios"]]


def scenarios(count: int) -> list[dict[str, Any]]:
    return [{"number": n, "metadata": {"scenario_id": n}} for n in range(count)]


def pair(rewards: tuple[float, ...] = (0.0, 1.0)) -> art.TrajectoryGroup:
    return art.TrajectoryGroup([art.Trajectory(reward=reward) for reward in rewards])
