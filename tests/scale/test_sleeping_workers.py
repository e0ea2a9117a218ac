"""Sleeping workers behind a real gateway: real processes, and a launcher of one's own."""

from __future__ import annotations

import asyncio
import http.client
import os
import signal
import time
from pathlib import Path

import pytest
from bench.nodes.scaling import ask, running_gateway
from bench.nodes.sleeping_worker import SleepingEngine

from art.engine.protocol import Delta, GenerateRequest, Sampling
from art.errors import ARTError
from art.process.worker import RunningWorker, Worker, WorkerSpec, module_command
from waiting import turns, until


def request(tokens: int = 3) -> GenerateRequest:
    return GenerateRequest(request_id="r", adapter=None, prompt_ids=[1], sampling=Sampling(max_tokens=tokens))


async def test_a_place_takes_one_request_at_a_time_and_a_cancelled_one_leaves_it() -> None:
    engine, ended = SleepingEngine("art/nano", places=2, seconds=0.0), list[Delta | ARTError]()
    calls = [engine.begin(request(), ended.append) for _ in range(4)]
    assert (engine.health().running, engine.health().waiting) == (2, 2)
    engine.cancel(calls[0])
    engine.cancel(calls[3])
    assert (engine.health().running, engine.health().waiting) == (2, 0)
    await until(lambda: len(ended) == 2)
    await turns()
    assert engine.health().running == 0 and len(ended) == 2 and engine.health().steps == 2


@pytest.mark.slow
async def test_a_connection_idle_for_longer_than_clients_keep_one_is_still_there(
    tmp_path: Path,
) -> None:
    config = {"base_model": "none", "bits": 16, "options": {}, "device": None}
    command, log = module_command("bench.nodes.sleeping_worker"), tmp_path / "log"
    worker = await Worker.start(WorkerSpec(name="idle", command=command, config=config, log_path=log))

    def ask_twice() -> list[int]:
        connection = http.client.HTTPConnection(worker.url.removeprefix("http://"), timeout=60)
        statuses = []
        for seconds in (6.0, 0.0):
            connection.request("GET", "/health", headers={"Authorization": f"Bearer {worker.key}"})
            reply = connection.getresponse()
            reply.read()
            statuses.append(reply.status)
            time.sleep(seconds)
        return statuses

    try:
        assert await asyncio.to_thread(ask_twice) == [200, 200]
    finally:
        await worker.stop()


@pytest.mark.slow
async def test_rollouts_on_two_workers_are_all_answered_also_when_one_is_killed(tmp_path: Path) -> None:
    launched: list[Worker] = []

    async def launch(spec: WorkerSpec) -> RunningWorker:
        worker = await Worker.start(spec)
        launched.append(worker)
        return worker

    async with running_gateway(2, tmp_path, launch) as gateway:
        asked = asyncio.create_task(ask(gateway, connections=24, turns=8, first=0))
        replicas = gateway.engines.pool.replicas
        await until(lambda: asked.done() or all(replica.open > 2 for replica in replicas))
        assert not asked.done(), "both have requests at the same time"
        os.kill(launched[0].pid, signal.SIGKILL)
        done = await asked
        assert not done["failed"], done["errors"]
        assert len(set(done["samples"])) == len(done["samples"]) == 24 * 8, "each is answered once"
        await until(lambda: len(launched) == 3 and gateway.engines.health()["state"] == "up")
    assert all(worker.returncode is not None for worker in launched)
