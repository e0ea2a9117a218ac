"""A worker that dies before it was told anything is an error of its name."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from waiting import DEADLINE_S

PROGRAM = """
import asyncio, sys
from pathlib import Path
import uvloop
from art.errors import WorkerDiedError
from art.process.files import WorkerLog
from art.process.worker import Worker, WorkerSpec

async def main():
    spec = WorkerSpec(name="trainer", command=("true",), config={}, log_path=Path(sys.argv[1]))
    pipes = {name: asyncio.subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    process = await asyncio.create_subprocess_exec(*spec.command, **pipes)
    await process.wait()
    try:
        await Worker(spec, process, WorkerLog(spec.log_path), "key")._handshake()
    except WorkerDiedError as error:
        print(error)

uvloop.run(main())
"""


@pytest.mark.slow
def test_a_worker_that_was_killed_before_the_handshake_is_named(tmp_path: Path) -> None:
    pytest.importorskip("uvloop")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, program, tmp_path / "log"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "worker 'trainer'" in done.stdout and str(tmp_path / "log") in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a worker ends with its stdin alone")
@pytest.mark.parametrize("is_alive", [True, False])
def test_a_worker_whose_server_died_before_it_began_does_not_begin(is_alive: bool) -> None:
    servers, workers = socket.socketpair()
    with servers, workers:
        servers.sendall(b"told\n")
        if not is_alive:
            servers.close()
        command = [sys.executable, "-m", "art.process.child", "this"]
        done = subprocess.run(command, stdin=workers, capture_output=True, timeout=DEADLINE_S, check=False)
    assert (b"Zen" in done.stdout, done.returncode) == (is_alive, 0 if is_alive else 1), done
