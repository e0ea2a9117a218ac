"""A server of one model, as it is used, and the processes that load it (`bench/serving/load.py`)."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from art.client.backends.local_server import ServerProcess, SupervisorLimits

TEXTS = 64
LIMIT_SECONDS = 300.0
ENGINE = {"options": {"threads": 1}}
LOWEST = "19"
"""The lowest priority."""


def cpu_seconds(*pids: int) -> float:
    """Of these processes, without their children."""
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return float(sum(one.user + one.system for one in times))


def chat_of(model: str) -> dict[str, Any]:
    """What a load process asks: so many texts in turn, short replies."""
    text = "Say yes, no or maybe."
    return {"model": model, "text": text, "texts": TEXTS, "max_tokens": 8, "stream": False}


@dataclass(kw_only=True)
class Served:
    """A running server, and the processes that ask it."""

    process: ServerProcess
    http: httpx.Client
    ledger: Path
    peak: int = 0
    """Bytes of memory that the server has had."""

    def job(self, **fields: Any) -> dict[str, Any]:
        return {"host": "127.0.0.1", "port": self.process.port, "key": self.process.key, **fields}

    def chats(self, **fields: Any) -> dict[str, Any]:
        return self.job(**{"kind": "requests", **chat_of("player"), **fields})

    def cpu(self) -> float:
        """Seconds of CPU that the server has used, its workers apart."""
        assert self.process.pid is not None
        return cpu_seconds(self.process.pid)

    def samples(self) -> int:
        with contextlib.closing(sqlite3.connect(self.ledger)) as file:
            return int(file.execute("SELECT count(*) FROM samples").fetchone()[0])

    def watch_memory(self, over: threading.Event) -> None:
        assert self.process.pid is not None
        server = psutil.Process(self.process.pid)
        while not over.wait(0.05):
            self.peak = max(self.peak, server.memory_info().rss)


def yield_to_other_sessions(pid: int) -> None:
    """Gives the session of this process the lowest priority. Linux shares the cores among sessions
    (`man 7 sched`, autogroup), and a process's own priority counts within its session only.
    """
    with contextlib.suppress(FileNotFoundError):  # a kernel without it
        Path(f"/proc/{pid}/autogroup").write_text(LOWEST, encoding="ascii")


def start(job: dict[str, Any], *, lowest_priority: bool = False) -> subprocess.Popen[str]:
    """Returns the process of a load, which has its job.

    lowest_priority: it takes what the server leaves of the cores, as the load of another machine would.
    """
    command = [
        *(["nice", "-n", LOWEST] if lowest_priority else []),
        sys.executable,
        "-m",
        "bench.serving.load",
    ]
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=lowest_priority,
    )
    if lowest_priority:
        yield_to_other_sessions(child.pid)
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
def serving(base: Path | str, folder: Path, **options: Any) -> Iterator[Served]:
    """options: of the server, beside those of its workers."""
    limits = SupervisorLimits(start_s=2 * LIMIT_SECONDS)
    process = ServerProcess(folder, {"engine": ENGINE, "trainer": ENGINE, **options}, limits=limits)
    process.ensure_running()
    headers = {"authorization": f"Bearer {process.key}"}
    http = httpx.Client(base_url=process.url, headers=headers, timeout=2 * LIMIT_SECONDS, trust_env=False)
    try:
        model = {"project": "bench", "name": "player", "base_model": str(base)}
        http.post("/art/models", json=model).raise_for_status()
        served = Served(process=process, http=http, ledger=folder / "server" / "ledger.sqlite")
        answer(start(served.chats(requests=256, connections=32, first=0, max_tokens=8, stream=False)))
        yield served
    finally:
        http.close()
        process.stop()


def train_once(served: Served, job_id: str) -> None:
    """A step of 64 trajectories. Raises SystemExit where it fails."""
    trajectories = [
        {"rollout": f"r{at}", "reward": float(at % 2), "samples": [one]}
        for at, one in enumerate(sampled(served))
    ]
    groups = [{"trajectories": trajectories[at : at + 8]} for at in range(0, len(trajectories), 8)]
    job = {"job_id": job_id, "groups": groups, "optimizer": {"learning_rate": 1e-4}}
    served.http.post("/art/models/bench/player/train", json=job).raise_for_status()
    with served.http.stream("GET", f"/art/jobs/{job_id}/events") as reply:
        last = [line for line in reply.iter_lines() if line.strip()][-1]
    if json.loads(last)["type"] != "result":
        raise SystemExit(f"training failed: {last}")


def sampled(served: Served) -> list[str]:
    """Samples of one question, to be trained on."""
    body = {"model": "player", "messages": [{"role": "user", "content": "Say yes, no or maybe."}]}
    reply = served.http.post("/v1/chat/completions", json={**body, "n": 64, "max_tokens": 16})
    return [choice["sample_id"] for choice in reply.raise_for_status().json()["choices"]]
