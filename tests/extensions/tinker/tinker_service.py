"""`art tinker` as tests start it, and the environment of the real SDK."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from art.process.resources import find_free_tcp_port
from waiting import DEADLINE_S, eventually

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / os.environ.get("ART_TEST_TINKER", ".venv-tinker") / "bin" / "python"
"""`make test-tinker-newest` names another environment."""
DONE = (0, -signal.SIGABRT)
"""How a program that did everything ends: daemon threads of the SDK can abort an interpreter on its way out,
after its output was written. So each test says what a whole output is.
"""
MISSING = not PYTHON.exists() and not os.environ.get("ART_TEST_EVERYTHING")
with_sdk = [
    pytest.mark.slow,
    pytest.mark.skipif(MISSING, reason="no .venv-tinker: `make .venv-tinker/.installed`"),
]


class Service:
    """`art tinker` on a folder, at one port, started as often as it is killed."""

    def __init__(self, data: Path, *options: str, **variables: str) -> None:
        """options: of `art tinker`. variables: of its environment, beside those of this process."""
        self.data, self.port, self.log = data, find_free_tcp_port(), data / "service.log"
        self._options, self._environment = options, {**os.environ, **variables}
        data.mkdir(parents=True, exist_ok=True)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [str(Path(sys.executable).with_name("art")), "tinker", "--data-dir", str(self.data)]
        told = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port), *self._options],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self._environment,
            )
        eventually(lambda: b"TINKER_API_KEY" in self.log.read_bytes()[told:])

    @property
    def variables(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.data),
            "TINKER_BASE_URL": f"http://127.0.0.1:{self.port}",
            "TINKER_API_KEY": (self.data / "tinker" / "key").read_text(),
            "TINKER_TELEMETRY": "0",
        }

    def describe(self) -> str:
        """The processes of the service, for the failure of a test."""
        assert self.process is not None
        if self.process.poll() is not None:
            return f"art tinker ended with {self.process.returncode}"
        service = psutil.Process(self.process.pid)
        alive = [service, *service.children(recursive=True)]
        return "\n".join(f"{one.pid} {one.status()} {' '.join(one.cmdline())[-90:]}" for one in alive)

    def find(self, module: str) -> int:
        """The process that runs a module below the service."""
        assert self.process is not None
        found = psutil.Process(self.process.pid).children(recursive=True)
        return next(one.pid for one in found if module in one.cmdline())

    def kill(self, what: str) -> None:
        """SIGKILL; the service itself with all that it started, and then it is started again."""
        assert self.process is not None
        if what == "service":
            children = psutil.Process(self.process.pid).children(recursive=True)
            for one in (self.process.pid, *(child.pid for child in children)):
                with_suppressed_kill(one)
            self.process.wait(DEADLINE_S)
            self.start()
        else:
            os.kill(self.find(what), signal.SIGKILL)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(DEADLINE_S)


def with_suppressed_kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@contextmanager
def serving(data: Path, *options: str, **variables: str) -> Iterator[Service]:
    service = Service(data, *options, **variables)
    service.start()
    try:
        yield service
    finally:
        service.stop()
