"""A real Ray cluster of simulated nodes, for tests and benches, in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEAD = "127.0.0.2"
ECHO_FOLDER = Path(__file__).parents[2] / "tests" / "server" / "workers"


class RayNodes:
    """The cluster. `environment`: what a program needs to use it."""

    def __init__(self, process: subprocess.Popen[str], environment: dict[str, str]) -> None:
        self.environment = environment
        self.alive: set[str] = set()
        self._count = 0
        self._process = process
        self.address: str = self._answer()["address"]

    def add(self, *, cpus: int = 2, **resources: float) -> str:
        """Adds a node; returns its address."""
        self._count += 1
        address = f"127.0.0.{10 + self._count}"
        self._tell({"add": {"node_ip_address": address, "num_cpus": cpus, "resources": resources}})
        self.alive.add(address)
        return address

    def kill(self, address: str) -> None:
        """Kills all processes of the node."""
        self._tell({"kill": address})
        self.alive.discard(address)

    def restart_head(self) -> None:
        """Kills the head node, and with it the cluster. The next head has the same address and no node."""
        answer = self._tell({"restart": []})
        assert answer["address"] == self.address, answer
        self.alive.clear()

    def _tell(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the Ray cluster ended"
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextlib.contextmanager
def ray_nodes(folder: Path, *, head: str = HEAD, token: bool = True) -> Iterator[RayNodes]:
    """A cluster with its head alone, which has room for nothing."""
    auth = {"RAY_AUTH_MODE": "disabled"}
    if token:
        auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    own = {
        **auth,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "180",
        # Without it each node starts an idle Python for each of its CPUs, which takes seconds of a core.
        "RAY_prestart_worker_first_driver": "0",
        "PYTHONPATH": str(ECHO_FOLDER),
    }
    environment = {**os.environ, **own}
    with (folder / "ray.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("ray_program.py")), json.dumps({"head": head})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        )
    try:
        yield RayNodes(process, own)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
