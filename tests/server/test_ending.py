"""A server that was told to end ends, whatever its event loop does."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, sys, time
from pathlib import Path
from art.server.__main__ import _stdin_end
from art.server.process import run
from art.server.settings import ServerSettings

settings = ServerSettings(
    data_dir=Path(sys.argv[1]), port=0, key="a-key-for-tests", control={"ending": float(sys.argv[2])}
)

def block():
    print("blocked", flush=True)
    exec_in_loop()

def ready(told):
    print("ready", flush=True)
    asyncio.get_running_loop().call_later(0.2, block)

def exec_in_loop():
    if sys.argv[3] == "python":
        while True:
            sum(range(1000))
    elif sys.argv[3] == "sleep":
        time.sleep(3600)

run(settings, on_ready=ready, until=_stdin_end)
"""


def started(tmp_path: Path, stuck: str, ending: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path), str(ending), stuck],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert process.stdout.readline() == "blocked\n"
    return process


@pytest.mark.slow
@pytest.mark.parametrize("stuck", ["python", "sleep"])
@pytest.mark.parametrize("told", ["SIGTERM", "SIGINT", "stdin"])
def test_a_server_whose_loop_is_stuck_ends_and_says_where(tmp_path: Path, stuck: str, told: str) -> None:
    process = started(tmp_path, stuck, 1.0)
    try:
        if told == "stdin":
            assert process.stdin is not None
            process.stdin.close()
        else:
            process.send_signal(signal.Signals[told])
        assert process.wait(timeout=240) == 1
        assert process.stderr is not None and "exec_in_loop" in process.stderr.read()
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_server_that_ends_in_order_is_not_hurried(tmp_path: Path) -> None:
    process = started(tmp_path, "not at all", 60.0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=240) == 0
