"""What a run is made of: the program, and where a cell asks for it a server, a judge, an MCP server or a disk
of its own, and a relay before what is on the other side of a connection.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from bench.faults import program
from bench.faults.links import Relay
from bench.faults.table import Cell

KEY = "a-key-for-the-matrix-of-faults"
START_S = 300.0
STOP_S = 60.0
READ_S = 5.0
"""For the last lines of a program that has ended; what it has started may hold its output open."""
LINKS = frozenset({"socket-stall", "half-open"})
DISKS = frozenset({"full-disk", "read-only-disk"})
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """ranks: of the trainer."""

    remote: bool = False
    disk: bool = False
    own_judge: bool = False
    mcp: bool = False
    environment: bool = False
    ranks: int = 1

    @classmethod
    def of(cls, cell: Cell) -> Setup:
        return cls(
            remote=cell.fault == "server-restart" or (cell.component == "client" and cell.fault in LINKS),
            disk=cell.fault in DISKS,
            own_judge=cell.component == "judge",
            mcp=cell.component == "mcp",
            environment=cell.component == "environment",
            ranks=2 if cell.component == "rank" else 1,
        )

    @property
    def computed(self) -> tuple[bool, bool, int]:
        """What the weights depend on."""
        return self.mcp, self.environment, self.ranks


class StartedChild:
    """A process beside the run, started by a command whose first line of output says that it serves."""

    def __init__(self, command: list[str], log: Path, *, told: str | None = None) -> None:
        """told: what its standard input gets, which then stays open."""
        self.process = psutil.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("a"),
            text=True,
            cwd=_ROOT,
        )
        if told is not None:
            self.process.stdin.write(told + "\n")
            self.process.stdin.flush()
        self.log, self.ended = log, False

    def first_line(self) -> str:
        line: str = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.log} says why this did not start")
        return line

    def end(self) -> None:
        """SIGKILL; what is frozen ends, too."""
        if self.ended:
            return
        self.ended = True
        with contextlib.suppress(psutil.NoSuchProcess):
            self.process.kill()
        self.process.communicate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@dataclass(frozen=True, kw_only=True)
class JudgeAddress:
    """log: the file in which the judge notes each question."""

    url: str
    key: str
    log: Path


@contextlib.contextmanager
def judge_server(folder: Path, port: int | None = None) -> Iterator[tuple[StartedChild, JudgeAddress]]:
    """A judge that knows the truth: its process and address. port: None is a free one."""
    questions = folder / "judge_questions.jsonl"
    where = ["--port", str(port or free_port()), "--log", str(questions)]
    child = StartedChild([sys.executable, "-m", "bench.faults.paid_judge", *where], folder / "judge.log")
    try:
        address, _, key = child.first_line().split()
        yield child, JudgeAddress(url=address, key=key, log=questions)
    finally:
        child.end()


@contextlib.contextmanager
def mcp_server(folder: Path, port: int | None = None) -> Iterator[tuple[StartedChild, str]]:
    """The weather server: its process and address. port: None is a free one."""
    port = port or free_port()
    command = [sys.executable, "-m", "art.mcp.servers.weather", "--http", "--port", str(port)]
    child = StartedChild(command, folder / "mcp.log")
    try:
        end = time.monotonic() + START_S
        while not _listens(port):
            if child.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{child.log} says why this did not start")
            time.sleep(0.05)
        yield child, f"http://127.0.0.1:{port}/mcp"
    finally:
        child.end()


@contextlib.contextmanager
def environment_server(folder: Path, port: int | None = None) -> Iterator[tuple[StartedChild, str]]:
    """An environment with the paths of NeMo-Gym, whose episodes are one step: its process and address."""
    port = port or free_port()
    world = ["0.01", "9", "1", str(port), "20"]  # seconds and requests at a time, steps, port, words
    command = [sys.executable, "-m", "bench.serving.slow_environment", *world]
    child = StartedChild(command, folder / "environment.log")
    try:
        yield child, f"http://127.0.0.1:{int(child.first_line())}"
    finally:
        child.end()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1.0).close()
        return True
    return False


def relayed(address: str) -> tuple[Relay, str]:
    """Returns a relay before an address, and the address that leads through it."""
    parts = urlsplit(address)
    relay = Relay(parts.port or 0)
    return relay, parts._replace(netloc=f"127.0.0.1:{relay.port}").geturl()


class OwnServer:
    """`python -m art.server` over the run's folder, as `art serve` sets it; it can be started again."""

    def __init__(self, folder: Path, log: Path) -> None:
        self._settings = {
            "key": KEY,
            "data_dir": str(folder),
            "port": free_port(),
            **program.OPTIONS,
            "control": {**program.OPTIONS["control"], "serve_registered": True},
        }
        self._log = log
        self.url = f"http://127.0.0.1:{self._settings['port']}"
        self.child: StartedChild | None = None

    def start(self) -> None:
        told = json.dumps(self._settings)
        self.child = StartedChild([sys.executable, "-m", "art.server"], self._log, told=told)
        ready = json.loads(self.child.first_line())
        if not ready["ready"]:
            raise RuntimeError(f"the server does not start: {ready}")

    @property
    def is_alive(self) -> bool:
        return self.child is not None and self.child.process.poll() is None

    def restart(self) -> None:
        """As an operator does it: SIGTERM, wait, start."""
        self.stop()
        self.start()

    def ask_to_end(self) -> None:
        if self.child is not None and not self.child.ended:
            with contextlib.suppress(psutil.NoSuchProcess):
                self.child.process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        if self.child is None or self.child.ended:
            return
        self.ask_to_end()
        with contextlib.suppress(subprocess.TimeoutExpired, psutil.TimeoutExpired):
            self.child.process.wait(STOP_S)
        self.child.end()


@dataclass
class StartedRun:
    """One process of the program, and what it has told so far."""

    process: Any
    log: Path
    told: list[dict[str, Any]] = field(default_factory=list)
    _lines: queue.Queue[str] = field(default_factory=queue.Queue)
    _reader: threading.Thread | None = None

    @classmethod
    def start(cls, asked: dict[str, Any], log: Path, *, replays: bool = False) -> StartedRun:
        """replays: the program that does a step again, whose temporary files lie on the run's disk."""
        script = Path(program.__file__).with_name("replaying.py") if replays else Path(program.__file__)
        command = [sys.executable, str(script), json.dumps(asked)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if replays:
            environment["TMPDIR"] = str(Path(asked["path"]).parent)
        process = psutil.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log.open("a"),
            text=True,
            cwd=log.parent,
            env=environment,
        )
        run = cls(process, log)
        run._reader = threading.Thread(target=run._read, daemon=True)
        run._reader.start()
        return run

    def _read(self) -> None:
        for line in self.process.stdout:
            self._lines.put(line)

    def hear(self) -> None:
        """Take what it has told meanwhile."""
        with contextlib.suppress(queue.Empty):
            while True:
                line = self._lines.get_nowait()
                if line.startswith("{"):
                    self.told.append(json.loads(line))

    def finish(self) -> int:
        """Hear the rest. Returns the exit status, once it has ended."""
        status = int(self.process.wait())
        assert self._reader is not None
        self._reader.join(READ_S)
        self.hear()
        return status

    def has_begun(self, phase: str) -> bool:
        return any(line.get("phase") == phase for line in self.told)

    def last(self, name: str) -> Any:
        """The newest value that was told by a name; None: none was."""
        return next((line[name] for line in reversed(self.told) if name in line), None)

    def ended(self) -> bool:
        return self.process.poll() is not None
