"""A real server as a child process, driven over HTTP and hurt with real signals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from waiting import gone

KEY = "a-key-for-the-fault-tests"
ENGINE = "art.engine.builtin.worker"
MODEL = {"project": "games", "name": "player"}


class ServerProcess:
    """`python -m art.server` over one data folder; it can be started again after it ended."""

    def __init__(
        self,
        data_dir: Path,
        base: Path,
        *,
        replicas: int = 1,
        cluster: dict[str, Any] | None = None,
        engine: dict[str, Any] | None = None,
        trainer: dict[str, Any] | None = None,
        database: str | None = None,
        role: str = "all",
        **control: float | str,
    ) -> None:
        self.data_dir = data_dir
        self.base = base
        self._settings = {
            "key": KEY,
            "data_dir": str(data_dir),
            "engine": engine or {"options": {"threads": 1}, "replicas": replicas},
            "trainer": {"options": {"threads": 1}, **(trainer or {})},
            "control": {"health_interval": 0.2, "restart_wait": 0.05, "heartbeat": 0.2, **control},
        }
        if cluster is not None:
            self._settings["cluster"] = cluster
        if database is not None:
            self._settings |= {"database": database, "role": role}
        self.process: subprocess.Popen[str] | None = None
        self.http = httpx.Client(timeout=240, headers={"Authorization": f"Bearer {KEY}"}, trust_env=False)

    # -- life --

    def start(self) -> None:
        """Start it and wait until it serves."""
        log = (self.data_dir.parent / "server.log").open("a")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "art.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(self._settings) + "\n")
        self.process.stdin.flush()
        ready = json.loads(self.process.stdout.readline())
        assert ready["ready"], ready
        self.http.base_url = httpx.URL(f"http://127.0.0.1:{ready['port']}")

    def kill(self) -> None:
        """kill -9, as the machine's out-of-memory killer does it."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """The end of its stdin is the end of the server. Returns the exit status."""
        assert self.process is not None and self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(timeout=240)

    def workers(self) -> dict[str, psutil.Process]:
        """`engine` and `trainer`, as processes."""
        assert self.process is not None
        found = {}
        for child in psutil.Process(self.process.pid).children():
            try:
                command = " ".join(child.cmdline())
            except psutil.Error:  # it has just ended
                continue
            for kind, module in (("engine", ENGINE), ("trainer", "art.training.worker")):
                if module in command:
                    found[kind] = child
        return found

    def engines(self) -> list[psutil.Process]:
        """Every engine process."""
        assert self.process is not None
        children = psutil.Process(self.process.pid).children()
        return [one for one in children if not gone(one) and ENGINE in " ".join(one.cmdline())]

    def health(self) -> dict[str, Any]:
        """Of the workers of the base model."""
        return dict(self.http.get("/health").json()["workers"][str(self.base)])

    def log(self, kind: str) -> str:
        paths = (self.data_dir / "server" / "logs").glob(f"{kind}-*.log")
        return "".join(path.read_text() for path in paths)

    # -- calls --

    def register(self, **changes: Any) -> dict[str, Any]:
        body = {**MODEL, "base_model": str(self.base), "lora": {"r": 4, "alpha": 8}, **changes}
        return self._json(self.http.post("/art/models", json=body, timeout=240))

    def model(self) -> dict[str, Any]:
        return self._json(self.http.get("/art/models/games/player"))

    def chat(self, model: str = "player", text: str = "hello", **options: Any) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 4, **options}
        return self.http.post("/v1/chat/completions", json=body)

    def choice(self, model: str = "player", **options: Any) -> dict[str, Any]:
        return self._json(self.chat(model, **options))["choices"][0]

    def job(self, job_id: str, rewards: tuple[float, ...] = (0.0, 1.0), **options: Any) -> dict[str, Any]:
        """A training job over fresh samples, not yet sent."""
        samples = [self.choice(temperature=1.0, **options)["sample_id"] for _ in rewards]
        trajectories = [
            {"rollout": f"r{at}", "reward": reward, "samples": [sample]}
            for at, (reward, sample) in enumerate(zip(rewards, samples, strict=True))
        ]
        optimizer = {"learning_rate": 1e-2}
        return {"job_id": job_id, "groups": [{"trajectories": trajectories}], "optimizer": optimizer}

    def submit(self, job: dict[str, Any]) -> dict[str, Any]:
        return self._json(self.http.post("/art/models/games/player/train", json=job))

    def events(self, job_id: str, after: int = 0, *, most: int = 10_000) -> list[dict[str, Any]]:
        """At most so many events after a number; all when the job has ended."""
        found: list[dict[str, Any]] = []
        url = f"/art/jobs/{job_id}/events?after={after}"
        with self.http.stream("GET", url, timeout=240) as reply:
            for line in reply.iter_lines():
                if line:
                    found.append(json.loads(line))
                if len(found) == most:
                    break
        return found

    def result(self, job_id: str) -> dict[str, Any]:
        """What came out of a job, when it has ended well."""
        last = self.events(job_id)[-1]
        assert last["type"] == "result", last
        return dict(last["result"])

    def train(self, job_id: str, **options: Any) -> dict[str, Any]:
        """Sample and train. Returns what came out."""
        self.submit(self.job(job_id, **options))
        return self.result(job_id)

    @staticmethod
    def _json(reply: httpx.Response) -> dict[str, Any]:
        assert reply.status_code == 200, reply.text
        return dict(reply.json())


@contextmanager
def running_server(
    data_dir: Path,
    base: Path,
    *,
    replicas: int = 1,
    cluster: dict[str, Any] | None = None,
    engine: dict[str, Any] | None = None,
    **control: float | str,
) -> Iterator[ServerProcess]:
    """A server with the model registered; whatever is left of it afterwards is killed."""
    server = ServerProcess(data_dir, base, replicas=replicas, cluster=cluster, engine=engine, **control)
    server.start()
    try:
        server.register()
        yield server
    finally:
        assert server.process is not None
        left = [] if server.process.poll() is not None else psutil.Process(server.process.pid).children()
        server.process.kill()
        server.process.communicate()
        for child in left:
            if child.is_running():
                child.kill()
        server.http.close()


def stop_signal(process: psutil.Process) -> None:
    """Freeze it: it lives, and answers nothing."""
    process.send_signal(signal.SIGSTOP)
