"""A program of others, and what it starts, end with whoever asked for it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from waiting import DEADLINE_S

pytestmark = pytest.mark.slow

PROGRAM = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
print(os.environ["SECRET"], os.environ.get("PYTHONPATH"), child.pid, os.getpid(), flush=True)
child.wait()
"""


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    monkeypatch.setenv("PYTHONPATH", "/somewhere/else")
    (tmp_path / "folder").mkdir()
    guard = subprocess.Popen(
        [sys.executable, "-m", "art.process.guard"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert guard.stdin is not None and guard.stderr is not None
    command = [sys.executable, "-c", PROGRAM]
    order = {"command": command, "environment": {"SECRET": "s3"}, "folder": str(tmp_path / "folder")}
    guard.stdin.write(json.dumps(order).encode() + b"\n")
    guard.stdin.flush()
    yield guard
    guard.stdin.close()
    guard.stderr.close()
    guard.kill()
    guard.wait()


def family(guard: subprocess.Popen[bytes]) -> tuple[list[str], psutil.Process, psutil.Process]:
    """What the program printed, the program, and its child."""
    assert guard.stderr is not None
    words = guard.stderr.readline().decode().split()
    return words, psutil.Process(int(words[3])), psutil.Process(int(words[2]))


def test_both_end_when_the_one_who_asked_is_gone(guarded: subprocess.Popen[bytes], tmp_path: Path) -> None:
    words, program, child = family(guarded)
    assert words[:2] == ["s3", "None"], "its variables, and none of our interpreter's"
    assert "s3" not in " ".join(program.cmdline() + psutil.Process(guarded.pid).cmdline())
    assert guarded.stdin is not None
    guarded.stdin.close()
    assert not psutil.wait_procs([program, child], timeout=240)[1]
    assert guarded.wait(DEADLINE_S) == 128 + signal.SIGTERM
    assert not (tmp_path / "folder").exists()


def test_its_children_do_not_outlive_a_killed_program(
    guarded: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    _, program, child = family(guarded)
    program.kill()
    assert guarded.wait(DEADLINE_S) == 128 + signal.SIGKILL
    assert not psutil.wait_procs([child], timeout=240)[1]
    assert not (tmp_path / "folder").exists()
