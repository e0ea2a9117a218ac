"""What one tenant's hostile bodies cost another one: the seconds of its chats, alone and beside them.

    python -m bench.serving.neighbours

`bob` asks one chat after the other. `alice` opens sixty connections with bodies of 31 MB that do not end, or
sends whole ones whose fields are as large as a body may be. Rounds alone and rounds beside take turns, so the
machine's own moods fall on both. All processes share its cores; those of `alice` have the lowest priority,
since her machine would be another one.
"""

from __future__ import annotations

import itertools
import json
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles
from types import MappingProxyType
from typing import Any

import httpx

from art.client.backends.local_server import ServerProcess
from art.server.tenants import Tenants
from bench.rows import Row, write_rows
from bench.serving.served import ENGINE, LIMIT_SECONDS, answer, chat_of, start

ROUNDS, CHATS = 4, 600
BEGIN_S = 2.0
"""Until the load has begun: what it sends is made first."""
GOAL = 1 / 1.5
"""Alone to beside."""
LARGE = 31_000_000
LOADS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "sixty bodies of 31 MB that do not end": {"connections": 60, "whole": False, "field": "stop"},
        "whole bodies with 31 MB of stop_token_ids": {
            "connections": 2,
            "whole": True,
            "field": "stop_token_ids",
        },
        "whole bodies with 31 MB of a message": {"connections": 2, "whole": True, "field": "content"},
    }
)


def seconds_of(job: Mapping[str, Any], first: int) -> list[float]:
    """Returns those of a round of chats. Raises SystemExit where one failed."""
    done = answer(start({**job, "requests": CHATS, "connections": 1, "first": first}))
    if done["failed"]:
        raise SystemExit(f"{done['failed']} chats of the quiet tenant failed: {done['errors']}")
    return list(done["seconds"])


def measured(quiet: Mapping[str, Any], loud: Mapping[str, Any], name: str) -> list[Row]:
    """Rounds alone and beside, in turn."""
    alone: list[float] = []
    beside: list[float] = []
    answered = Counter[str]()
    numbers = itertools.count(step=CHATS)
    for _ in range(ROUNDS):
        alone += seconds_of(quiet, next(numbers))
        load = start({**loud, **LOADS[name], "kind": "bodies", "bytes": LARGE}, lowest_priority=True)
        time.sleep(BEGIN_S)
        beside += seconds_of(quiet, next(numbers))
        answered.update(json.loads(load.communicate("", timeout=LIMIT_SECONDS)[0])["answered"])
    told = ", ".join(f"{count} x {status}" for status, count in sorted(answered.items())) or "none answered"
    return [row(f"{name}, {share} ({told})", of(alone), of(beside)) for share, of in SHARES.items()]


def ninetieth(seconds: Sequence[float]) -> float:
    return quantiles(seconds, n=10)[-1]


SHARES = {"median": median, "90th percentile": ninetieth}


def row(name: str, alone: float, beside: float) -> Row:
    ratio = alone / beside
    return Row(name=name, ours=1000 * beside, peer=1000 * alone, ratio=ratio, unit="ms a chat", goal=GOAL)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="art-bench-") as folder:
        process = ServerProcess(Path(folder), {"engine": ENGINE, "trainer": ENGINE})
        process.ensure_running()
        tenants = Tenants(Path(folder) / "server" / "tenants.json")
        try:
            jobs = [job_of(process, tenants.create(name)) for name in ("bob", "alice")]
            rows = [one for name in LOADS for one in measured(*jobs, name)]
        finally:
            process.stop()
    write_rows("neighbours", rows)


def job_of(process: ServerProcess, key: str) -> dict[str, Any]:
    """Registers a tenant's model, and returns what its load processes ask of it."""
    job = {"host": "127.0.0.1", "port": process.port, "key": key, "kind": "requests", **chat_of("player")}
    headers = {"authorization": f"Bearer {key}"}
    with httpx.Client(base_url=process.url, headers=headers, timeout=120, trust_env=False) as http:
        model = {"project": "bench", "name": "player", "base_model": "art/nano-games"}
        http.post("/art/models", json=model).raise_for_status()
    return job


if __name__ == "__main__":
    main()
