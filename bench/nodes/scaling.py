"""Rollouts on 1 to 8 engine workers that sleep in place of computing: what the gateway leaves of their rate.

Each worker is a process with the real face of an engine's worker, 16 places and 0.2 s a request
(`sleeping_worker.py`). The gateway is the real one: HTTP, rendering, ledger, pool, supervisors. Another
process holds 32 rollouts a worker, each one request after the other. The rate is that while all of them have
requests; efficiency = rate(n) / (n x rate(1)).

    python -m bench.nodes.scaling [WORKERS ...]
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import uvicorn

from art.engine.base_models import resolve_base
from art.process.resources import listen
from art.process.worker import Launch, RunningWorker, Worker, WorkerSpec, module_command
from art.rendering.registry import create_chat_renderer
from art.server.app import App
from art.server.catalog import Catalog
from art.server.connections import http_protocol
from art.server.data_folder import DataLayout
from art.server.ledger.ledger import Ledger
from art.server.ledger.stitching import Stitcher
from art.server.settings import ControlSettings, LimitSettings
from art.server.workers.base_model import EngineWorkers
from art.server.workers.supervisor import WorkerOptions
from bench.nodes.sleeping_worker import PLACES, SECONDS
from bench.rows import Row, write_rows
from bench.serving.served import answer, start

BASE, KEY = "art/nano", "a-key-for-the-bench"
COUNTS = (1, 2, 4, 8)
ROLLOUTS, TURNS = 2 * PLACES, 30
"""Rollouts of a worker at a time; requests of each."""
EFFICIENCY = 0.95
HELD, HELD_RATIO = 2000, 0.67
"""Requests held at a time, and how much of a request's CPU with few of them is asked to remain the same."""


def sleeping(launch: Launch) -> Launch:
    """Starts a worker that sleeps where `launch` would start an engine's worker."""

    async def start_sleeping(spec: WorkerSpec) -> RunningWorker:
        return await launch(replace(spec, command=module_command("bench.nodes.sleeping_worker")))

    return start_sleeping


@dataclass(kw_only=True)
class Gateway:
    """A gateway in this process, and its engine workers."""

    port: int
    engines: EngineWorkers
    ledger: Ledger

    def job(self, **fields: Any) -> dict[str, Any]:
        """Of `bench/serving/load.py`."""
        told = {"kind": "requests", "model": BASE, "text": "Say yes, no or maybe.", "texts": 64}
        return {"host": "127.0.0.1", "port": self.port, "key": KEY, "stream": False, **told, **fields}


@contextlib.asynccontextmanager
async def running_gateway(count: int, folder: Path, launch: Launch = Worker.start) -> AsyncIterator[Gateway]:
    """A gateway with `count` sleeping engine workers, each started by `launch`."""
    base, catalog, limits, layout = resolve_base(BASE), Catalog(), LimitSettings(), DataLayout(folder)
    layout.ledger_file.parent.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(layout.ledger_file)
    engines = EngineWorkers(
        base,
        options=WorkerOptions(engine_options={}, trainer_options={}, replicas=count, launch=sleeping(launch)),
        layout=layout,
        settings=ControlSettings(),
        restarted=lambda engine, adapters: catalog.replace_engine(base.name, engine, adapters=adapters),
    )
    try:
        await engines.start()
        renderer = create_chat_renderer(base.source, name=base.name)
        catalog.add_base(base.name, engines.pool, renderer, max_context=4096, aliases=base.aliases)
        stitcher = Stitcher(
            ledger, max_tokens=limits.remembered_tokens, ledger_is_empty=await ledger.is_empty()
        )
        app = App(key=KEY, catalog=catalog, ledger=ledger, stitcher=stitcher, limits=limits)
        with listen("127.0.0.1", 0) as listener:
            config = uvicorn.Config(
                app,
                http=http_protocol(limits),
                lifespan="off",
                access_log=False,
                log_config=None,
                backlog=4096,
            )
            server = uvicorn.Server(config)
            task = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                yield Gateway(port=int(listener.getsockname()[1]), engines=engines, ledger=ledger)
            finally:
                server.should_exit = True
                await task
    finally:
        await engines.close()
        await ledger.close()


async def ask(gateway: Gateway, connections: int, turns: int, first: int) -> dict[str, Any]:
    """What the load process found: rollouts are connections, each with its own name."""
    job = gateway.job(
        connections=connections, rollouts=connections, requests=connections * turns, max_tokens=8, first=first
    )
    return await asyncio.to_thread(lambda: answer(start(job)))


async def rate_of(
    count: int, launch: Launch = Worker.start, *, held: int | None = None, turns: int = TURNS
) -> tuple[float, float]:
    """Requests a second of `count` workers, and the gateway's CPU of a request in ms.

    held: requests at a time; None: those of the rollouts.
    """
    with tempfile.TemporaryDirectory(prefix="art-bench-") as folder:
        async with running_gateway(count, Path(folder), launch) as gateway:
            connections = held or ROLLOUTS * count
            await ask(gateway, connections, 1, 0)
            cpu = time.process_time()
            done = await ask(gateway, connections, turns, 1_000_000)
            cpu = time.process_time() - cpu
            if done["failed"]:
                raise SystemExit(f"{done['failed']} requests failed: {done['errors']}")
            return done["ended_busy"] / done["busy"], cpu / (connections * turns) * 1e3


async def measure(counts: Sequence[int], launch: Launch = Worker.start) -> list[Row]:
    rows: list[Row] = []
    alone = cpu = 0.0
    for count in counts:
        rate, cpu = await rate_of(count, launch)
        alone = alone or rate / count
        possible = count * PLACES / SECONDS
        name = f"{count} worker{'s' * (count > 1)}"
        rows += [
            Row(
                name=f"{name}: requests a second", ours=rate, peer=possible, unit="1/s", ratio=rate / possible
            ),
            Row(name=f"{name}: efficiency", ours=rate / (count * alone), unit="", goal=EFFICIENCY),
            Row(name=f"{name}: CPU of the gateway for a request", ours=cpu, unit="ms"),
        ]
    _, crowded = await rate_of(max(counts), launch, held=HELD, turns=2)
    name = f"{HELD:,} requests held: CPU of the gateway for a request, against {ROLLOUTS * max(counts)} held"
    return [*rows, Row(name=name, ours=crowded, peer=cpu, unit="ms", ratio=cpu / crowded, goal=HELD_RATIO)]


def main(*counts: int) -> None:
    write_rows("scaling", asyncio.run(measure(counts or COUNTS)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
