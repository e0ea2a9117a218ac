"""Ten thousand connections: /health, a quiet tenant's chats, and what the server's memory is afterwards.

    python -m bench.serving.connections [--connections 10000]

`alice` holds connections that are idle, that do not finish a head, that send a byte of a body a second, that
take a byte of an answer a second, or that send deep bodies, and sends bodies of 31 MB on two more. `bob` asks
one chat after the other, and somebody asks /health ten times a second. All processes share the machine; those
of `alice` have its lowest priority, since her machine would be another one. The rows tell how much she did.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil

from art.client.backends.local_server import ServerProcess
from art.server.tenants import Tenants
from bench.rows import Row, write_rows
from bench.serving.neighbours import LARGE, LOADS, job_of, seconds_of
from bench.serving.served import ENGINE, LIMIT_SECONDS, start

CONNECTIONS = 10_000
CHATS_FIRST = 600
EVERY_S = 0.1
HEALTH_MS = 100.0
QUIET = 1 / 1.5
"""Alone to beside."""
KEPT_MIB = 100.0
"""More than before, once all connections are closed."""
SETTLING_S = 20.0
OPEN_WITHIN_S = 120.0


def memory_of(process: ServerProcess) -> float:
    """MiB of the server, its workers apart."""
    assert process.pid is not None
    return float(psutil.Process(process.pid).memory_info().rss) / 2**20


def opened(job: dict[str, Any], connections: int) -> Any:
    """Returns the process that holds so many connections, once they are open."""
    held = start(
        {**job, "kind": "held", "connections": connections, "within": OPEN_WITHIN_S}, lowest_priority=True
    )
    assert held.stdout is not None
    line = held.stdout.readline()
    if not line:
        raise SystemExit("the connections could not be opened")
    return held


def ended(process: Any) -> dict[str, Any]:
    """Returns what a load process tells at its end."""
    told, _ = process.communicate("", timeout=LIMIT_SECONDS)
    if process.returncode:
        raise SystemExit(f"a load process ended with {process.returncode}")
    return dict(json.loads(told))


def measured(process: ServerProcess, quiet: Any, loud: Any, connections: int) -> list[Row]:
    """Rows alone, beside the connections, and after them."""
    alone = seconds_of(quiet, 0)
    before = memory_of(process)
    held = opened(loud, connections)
    body = LOADS["whole bodies with 31 MB of stop_token_ids"]
    bodies = start({**loud, **body, "kind": "bodies", "bytes": LARGE}, lowest_priority=True)
    pulse = start({**loud, "kind": "pulse", "every": EVERY_S})
    beside = seconds_of(quiet, CHATS_FIRST)
    pulses, answered = ended(pulse), ended(bodies)["answered"]
    most = memory_of(process)
    counts = ended(held)["counts"]
    time.sleep(SETTLING_S)
    kept = memory_of(process) - before
    if pulses["failed"]:
        raise SystemExit(f"/health failed {pulses['failed']} times")
    health = 1000 * quantiles(pulses["seconds"], n=100)[-1]
    name = f"{connections} connections ({counts['opened']} opened; bodies of 31 MB: {answered})"
    slower = median(alone) / median(beside)
    return [
        Row(name=f"{name}, /health, p99", ours=health, unit="ms", goal=HEALTH_MS, at_most=True),
        Row(
            name="a quiet tenant's chat, median, alone and beside",
            ours=1000 * median(beside),
            peer=1000 * median(alone),
            ratio=slower,
            unit="ms",
            goal=QUIET,
        ),
        Row(name="memory beside, more than before", ours=most - before, unit="MiB"),
        Row(name="memory afterwards, more than before", ours=kept, unit="MiB", goal=KEPT_MIB, at_most=True),
    ]


def main() -> None:
    """Starts a server with two tenants, measures, and writes the rows."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--connections", type=int, default=CONNECTIONS)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="art-bench-") as folder:
        process = ServerProcess(Path(folder), {"engine": ENGINE, "trainer": ENGINE})
        process.ensure_running()
        tenants = Tenants(Path(folder) / "server" / "tenants.json")
        try:
            quiet, loud = (job_of(process, tenants.create(name)) for name in ("bob", "alice"))
            rows = measured(process, quiet, loud, asked.connections)
        finally:
            process.stop()
    write_rows("connections", rows)


if __name__ == "__main__":
    main()
