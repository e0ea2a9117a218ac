"""The server under load: 2,000 requests at once, `/health` beside them, and what the gateway costs a request.

The server runs as it is used, with the builtin engine and a model in the shape of `art/nano` whose replies
do not end early; load and `/health` come from processes of their own (`load.py`). A request is held
from its first byte until its answer ends: all 2,000 are sent at once.

What the gateway costs a request is `bench/serving/overhead.py`.

    python -m bench.serving.gateway            all of it
    python -m bench.serving.gateway overhead   the cost alone
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench.rows import Row, write_rows
from bench.serving.loop import random_model
from bench.serving.overhead import overhead_rows
from bench.serving.served import LIMIT_SECONDS, Served, answer, serving, start, train_once

HELD, TOKENS = 2000, 48
HEALTH_SECONDS = 0.1
MEMORY_MIB = 512.0


def held_rows(served: Served, *, stream: bool, training: bool = False) -> list[Row]:
    """2,000 at once; `training`: while steps are trained as well."""
    before, over = served.samples(), threading.Event()
    watch = threading.Thread(target=served.watch_memory, args=(over,))
    watch.start()
    pulse = start(served.job(kind="pulse", every=0.01))
    trainer = threading.Thread(target=train_until, args=(served, over), daemon=True) if training else None
    if trainer is not None:
        trainer.start()
    time.sleep(0.5)
    load = served.chats(requests=HELD, connections=HELD, first=10_000, max_tokens=TOKENS, stream=stream)
    done = answer(start(load))
    over.set()
    health = json.loads(pulse.communicate("", timeout=LIMIT_SECONDS)[0])
    for thread in filter(None, (watch, trainer)):
        thread.join(LIMIT_SECONDS)
    if done["failed"] or health["failed"]:
        raise SystemExit(f"{done['failed']} requests failed: {done['errors']}; /health: {health['failed']}")
    kept = len(set(done["samples"])) if training else served.samples() - before
    name = f"{HELD:,} held" + (", streamed" if stream else "") + (", steps are trained" if training else "")
    worst = health["seconds"][-1]
    peak = served.peak / 2**20
    rows = [
        Row(
            name=f"{name}: samples in the ledger",
            ours=min(kept, len(set(done["samples"]))),
            unit="samples",
            goal=HELD,
        ),
        Row(name=f"{name}: slowest /health", ours=worst, unit="s", goal=HEALTH_SECONDS, at_most=True),
        Row(name=f"{name}: peak memory of the server", ours=peak, unit="MiB", goal=MEMORY_MIB, at_most=True),
    ]
    return rows


def all_held_rows(served: Served) -> list[Row]:
    rows = held_rows(served, stream=False)
    rows += held_rows(served, stream=True)
    return rows + held_rows(served, stream=False, training=True)


def train_until(served: Served, over: threading.Event) -> None:
    """Steps one after the other."""
    number = 0
    while not over.is_set():
        number += 1
        train_once(served, f"t{number}")


def main() -> None:
    only_overhead = "overhead" in sys.argv
    with tempfile.TemporaryDirectory(prefix="art-bench-") as name:
        base = Path(name) / "base"
        random_model(base)
        with serving(base, Path(name) / "data") as served:
            rows = [] if only_overhead else all_held_rows(served)
            rows += asyncio.run(overhead_rows(served, base))
    write_rows("gateway_overhead" if only_overhead else "gateway", rows)


if __name__ == "__main__":
    main()
