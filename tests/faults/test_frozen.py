"""The real server under `LocalBackend`: frozen in the middle of a job."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

import art
from art.client.backends.local_server import SupervisorLimits
from art.server.data_folder import DataFolderLock
from waiting import eventually, gone

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="states of processes are read from /proc"),
]


async def test_a_job_goes_on_after_its_server_was_frozen(tmp_path: Path, base: Path) -> None:
    limits = SupervisorLimits(health_interval_s=0.5, health_deadline_s=8.0)
    options = {
        "engine": {"options": {"threads": 1}},
        "trainer": {"options": {"threads": 1}},
        "control": {"heartbeat": 0.2},
    }
    model = art.TrainableModel(name="player", project="games", base_model=str(base))
    async with art.LocalBackend(
        path=tmp_path / "art", server_options=options, supervisor_limits=limits
    ) as backend:
        await model.register(backend)
        client = model.openai_client()

        async def rollout(reward: float) -> art.Trajectory:
            question = {"role": "user", "content": "hello"}
            reply = await client.chat.completions.create(
                model=model.get_inference_name(), messages=[question], max_tokens=4
            )
            return art.Trajectory(messages_and_choices=[question, reply.choices[0]], reward=reward)

        group = art.TrajectoryGroup([await rollout(0.0), await rollout(1.0)])
        server = psutil.Process(backend._server.pid)
        workers = server.children(recursive=True)
        (trainer,) = (one for one in workers if "art.training.worker" in " ".join(one.cmdline()))
        trainer.suspend()  # so that the job is under way when the server is frozen
        training = asyncio.create_task(model.train([group], learning_rate=1e-2))
        jobs = tmp_path / "art" / "server" / "jobs.sqlite-wal"
        before = jobs.stat().st_size
        while jobs.stat().st_size == before:  # noqa: ASYNC110 - another process's file has no event
            await asyncio.sleep(0.05)
        os.kill(server.pid, signal.SIGSTOP)
        result = await training
        assert result.step == 1
        eventually(lambda: gone(server) and all(gone(one) for one in workers))
        assert (await rollout(0.0)).messages_and_choices[-1].model_extra["step"] == 1
    DataFolderLock(tmp_path / "art" / "server").release()
