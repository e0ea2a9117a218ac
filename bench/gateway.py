"""The server under load: 2,000 requests at once, `/health` beside them, and what the gateway costs a request.

The server runs as it is used, with the builtin engine and a model in the shape of `art/nano` whose replies
do not end early; load and `/health` come from processes of their own (`bench/load.py`). A request is held
from its first byte until its answer ends: all 2,000 are sent at once.

What the gateway costs is measured against the engine's worker asked directly, as an agent asks: each request
goes on with a conversation of four turns, replies have 16 to 112 tokens. Both are asked for the same prompts,
seeds and lengths, hence the same tokens, over the same number of requests at a time; the two take turns. The
server's CPU time is told beside it: on two cores the engine has one, server and load share the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from art.local.supervisor import ServerProcess
from art.rendering.registry import create_chat_renderer
from bench.engine import OPTIONS
from bench.loop import random_model
from bench.rows import Row, write_rows
from bench.workers import running_engine

HELD, TOKENS = 2000, 48
HEALTH_SECONDS = 0.1
MEMORY_MIB = 512.0
OVERHEAD_MS = 3.0
NOISE_MS = 0.3
"""Less than so much is not told apart."""
THROUGHPUT = 0.95
REQUESTS = {1: 16, 8: 64, 64: 256}
"""At a time -> altogether."""
REPLY_TOKENS = (16, 112)
REPETITIONS = 3
TURNS, CONVERSATIONS = 4, 16
TEXTS = 64
LIMIT_SECONDS = 300.0
ENGINE = {"options": {"threads": 1}}


@dataclass(kw_only=True)
class Served:
    """A running server, and the processes that ask it."""

    process: ServerProcess
    http: httpx.Client
    ledger: Path
    peak: int = 0
    """Bytes of memory that the server has had."""
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def job(self, **fields: Any) -> dict[str, Any]:
        return {"host": "127.0.0.1", "port": self.process.port, "key": self.process.key, **fields}

    def chats(self, **fields: Any) -> dict[str, Any]:
        text = "Say yes, no or maybe."
        return self.job(kind="requests", model="player", text=text, texts=TEXTS, **fields)

    def cpu(self) -> float:
        """Seconds of CPU that the server has used, its workers apart."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def samples(self) -> int:
        with contextlib.closing(sqlite3.connect(self.ledger)) as file:
            return int(file.execute("SELECT count(*) FROM samples").fetchone()[0])

    def watch_memory(self, over: threading.Event) -> None:
        assert self.process.pid is not None
        server = psutil.Process(self.process.pid)
        while not over.wait(0.05):
            self.peak = max(self.peak, server.memory_info().rss)


def start(job: dict[str, Any]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.load"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    child.stdin.write(json.dumps(job) + "\n")
    child.stdin.flush()
    return child


def answer(child: subprocess.Popen[str]) -> dict[str, Any]:
    told, _ = child.communicate(timeout=LIMIT_SECONDS)
    if child.returncode:
        raise SystemExit(f"the load process ended with {child.returncode}")
    return dict(json.loads(told))


@contextlib.contextmanager
def serving(base: Path, folder: Path) -> Iterator[Served]:
    process = ServerProcess(folder, {"engine": ENGINE, "trainer": ENGINE})
    process.ensure_running()
    headers = {"authorization": f"Bearer {process.key}"}
    http = httpx.Client(base_url=process.url, headers=headers, timeout=120, trust_env=False)
    try:
        model = {"project": "bench", "name": "player", "base_model": str(base)}
        http.post("/art/models", json=model).raise_for_status()
        served = Served(process=process, http=http, ledger=folder / "server" / "ledger.sqlite")
        answer(start(served.chats(requests=256, connections=32, first=0, max_tokens=8, stream=False)))
        yield served
    finally:
        http.close()
        process.stop()


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
        Row(name=f"{name}: samples in the ledger, against requests", ours=kept, peer=HELD,
            unit="samples", ratio=min(kept, len(set(done["samples"]))) / HELD, goal=1.0),
        Row(name=f"{name}: slowest /health, against {HEALTH_SECONDS * 1000:.0f} ms", ours=worst,
            peer=HEALTH_SECONDS, unit="s", ratio=HEALTH_SECONDS / worst, goal=1.0),
        Row(name=f"{name}: peak memory of the server", ours=peak, peer=MEMORY_MIB, unit="MiB",
            ratio=MEMORY_MIB / peak, goal=1.0),
    ]  # fmt: skip
    return rows


def train_until(served: Served, over: threading.Event) -> None:
    """Steps of 64 trajectories, one after the other."""
    number = 0
    while not over.is_set():
        number += 1
        samples = sampled(served)
        trajectories = [
            {"rollout": f"r{at}", "reward": float(at % 2), "samples": [one]} for at, one in enumerate(samples)
        ]
        groups = [{"trajectories": trajectories[at : at + 8]} for at in range(0, len(trajectories), 8)]
        job = {"job_id": f"t{number}", "groups": groups, "optimizer": {"learning_rate": 1e-4}}
        served.http.post("/art/models/bench/player/train", json=job).raise_for_status()
        with served.http.stream("GET", f"/art/jobs/t{number}/events") as reply:
            last = [line for line in reply.iter_lines() if line.strip()][-1]
        if json.loads(last)["type"] != "result":
            raise SystemExit(f"training failed: {last}")


def sampled(served: Served) -> list[str]:
    """Samples of one question, to be trained on."""
    body = {"model": "player", "messages": [{"role": "user", "content": "Say yes, no or maybe."}]}
    reply = served.http.post("/v1/chat/completions", json={**body, "n": 64, "max_tokens": 16})
    return [choice["sample_id"] for choice in reply.raise_for_status().json()["choices"]]


def conversations_of(served: Served) -> tuple[list[list[dict[str, Any]]], list[list[int]]]:
    """What agents would ask next, and the ids of each as the gateway sends them."""
    conversations, prompts = [], []
    for number in range(CONVERSATIONS):
        messages: list[dict[str, Any]] = []
        for turn in range(TURNS):
            messages.append({"role": "user", "content": f"Turn {turn} of {number}: yes, no or maybe?"})
            body = {"model": "player", "messages": messages, "max_tokens": 24, "seed": number}
            choice = (
                served.http.post("/v1/chat/completions", json=body).raise_for_status().json()["choices"][0]
            )
            if turn + 1 < TURNS:
                messages.append(choice["message"])
        conversations.append(messages)
        prompts.append(served.http.get(f"/v1/samples/{choice['sample_id']}").json()["prompt_ids"])
    return conversations, prompts


async def overhead_rows(served: Served, base: Path) -> list[Row]:
    conversations, prompts = conversations_of(served)
    stops = create_chat_renderer(base, name="base").stop_token_ids
    rows = []
    async with running_engine(base, OPTIONS) as engine:
        port, key = int(engine.url.rpartition(":")[2]), engine._headers["Authorization"].split()[1]
        for count, requests in REQUESTS.items():
            shape = {"connections": count, "requests": requests, "stream": False, "max_tokens": REPLY_TOKENS}
            pairs = []
            for repetition in range(REPETITIONS + 1):
                first = repetition * 100_000
                before = served.cpu()
                ours = await asyncio.to_thread(
                    answer, start(served.chats(first=first, conversations=conversations, **shape))
                )
                ours["server_cpu"] = served.cpu() - before
                straight = {"kind": "direct", "host": "127.0.0.1", "port": port, "key": key, "first": first}
                straight |= {"prompts": prompts, "stop_token_ids": stops, **shape}
                theirs = await asyncio.to_thread(answer, start(straight))
                if repetition:
                    pairs.append((ours, theirs))
            rows += pair_rows(count, pairs)
    return rows


def pair_rows(count: int, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[Row]:
    more = statistics.median(
        1000 * (statistics.median(ours["seconds"]) - statistics.median(theirs["seconds"]))
        for ours, theirs in pairs
    )
    rate = [len(ours["seconds"]) / ours["wall"] for ours, _ in pairs]
    peer = [len(theirs["seconds"]) / theirs["wall"] for _, theirs in pairs]
    cpu = statistics.median(1000 * ours["server_cpu"] / len(ours["seconds"]) for ours, _ in pairs)
    return [
        Row(name=f"{count} at a time: what the gateway adds to a request, p50", ours=more, peer=OVERHEAD_MS,
            unit="ms", ratio=OVERHEAD_MS / max(more, NOISE_MS), goal=1.0),
        Row(name=f"{count} at a time: requests a second, against the engine's worker",
            ours=statistics.median(rate), peer=statistics.median(peer), unit="requests/s",
            ratio=statistics.median(a / b for a, b in zip(rate, peer, strict=True)),
            goal=THROUGHPUT if count == max(REQUESTS) else None),
        Row(name=f"{count} at a time: CPU of the server for a request, against {OVERHEAD_MS:.0f} ms",
            ours=cpu, peer=OVERHEAD_MS, unit="ms", ratio=OVERHEAD_MS / cpu),
    ]  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="art-bench-") as name:
        base = Path(name) / "base"
        random_model(base)
        with serving(base, Path(name) / "data") as served:
            rows = held_rows(served, stream=False)
            rows += held_rows(served, stream=True)
            rows += held_rows(served, stream=False, training=True)
            rows += asyncio.run(overhead_rows(served, base))
    write_rows("gateway", rows)


if __name__ == "__main__":
    main()
