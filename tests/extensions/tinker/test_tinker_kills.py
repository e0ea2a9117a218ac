"""The service, the server behind it or a worker dies by SIGKILL while the real SDK trains: its own retries go
on, and the weights are those of a run that nobody disturbed, bit by bit.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from art.process.resources import find_free_tcp_port
from waiting import eventually

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).parent / "programs" / "steps_on_fixed_data.py"
PYTHON = ROOT / ".venv-tinker" / "bin" / "python"
MISSING = not PYTHON.exists() and not os.environ.get("ART_TEST_EVERYTHING")
STEPS = 8

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MISSING, reason="no .venv-tinker: `make .venv-tinker/.installed`"),
]


class Service:
    """`art tinker` on a folder, at one port, started as often as it is killed."""

    def __init__(self, data: Path) -> None:
        self.data, self.port, self.log = data, find_free_tcp_port(), data / "service.log"
        data.mkdir(parents=True, exist_ok=True)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [str(Path(sys.executable).with_name("art")), "tinker", "--data-dir", str(self.data)]
        told = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port)], stdout=log, stderr=log, start_new_session=True
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
            self.process.wait(30)
            self.start()
        else:
            os.kill(self.find(what), signal.SIGKILL)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)


def with_suppressed_kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@contextmanager
def serving(data: Path) -> Iterator[Service]:
    service = Service(data)
    service.start()
    try:
        yield service
    finally:
        service.stop()


def train(service: Service, kills: dict[int, str]) -> list[str]:
    """The program's lines. kills: what dies after which step's line."""
    program = subprocess.Popen(
        [str(PYTHON), str(PROGRAM), str(STEPS)],
        env=service.variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    ending = threading.Timer(500, program.kill)
    ending.start()
    lines = []
    assert program.stdout is not None and program.stderr is not None
    for line in program.stdout:
        lines.append(line.strip())
        if line.startswith("step ") and (what := kills.get(int(line.split()[1]))) is not None:
            service.kill(what)
    code = program.wait()
    ending.cancel()
    assert code == 0, program.stderr.read()[-3000:] + service.log.read_text()[-3000:]
    return lines


def weights(service: Service, lines: list[str]) -> dict[str, bytes]:
    """The files of the last step: adapter, moments, random state."""
    run = lines[0].split()[1].replace(":train:", "-")
    folder = service.data / "tinker" / "models" / run / "checkpoints" / f"{STEPS:04d}"
    names = ("adapter_model.safetensors", "optimizer.safetensors")
    return {name: (folder / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, bytes]]:
    with serving(tmp_path_factory.mktemp("calm") / "data") as service:
        lines = train(service, {})
        return lines, weights(service, lines)


@pytest.mark.parametrize(
    "kills",
    [
        {1: "art.training.worker", 4: "art.engine.builtin.worker"},
        {1: "art.server", 4: "art.training.worker"},
        {1: "service", 4: "service"},
    ],
    ids=["workers", "server", "service"],
)
def test_killed_in_the_middle_it_ends_with_the_same_weights(
    kills: dict[int, str], undisturbed: tuple[list[str], dict[str, bytes]], tmp_path: Path
) -> None:
    calm, expected = undisturbed
    with serving(tmp_path / "data") as service:
        lines = train(service, kills)
        assert lines[1:-1] == calm[1:-1]
        assert weights(service, lines) == expected
