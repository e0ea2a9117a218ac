"""No server outlives the program that started it, however that ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from art.process.reaper import Reaper, reaper
from art_extensions.scenarios.mcp import StdioServer, connect
from starting import StartedProgram
from waiting import eventually, gone, until

pytestmark = pytest.mark.slow

WITH_A_SESSION = """
import asyncio, sys
from art_extensions.scenarios.mcp import StdioServer, connect

async def main():
    async with connect(StdioServer(command=sys.executable, args=("-S", *sys.argv[1:]))) as session:
        print((await session.call("go")).text, flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""
SLEEPER = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(1000)"]
WAIT_S = 240


@pytest.mark.skipif(sys.platform == "win32", reason="there are no process groups")
async def test_not_one_that_heeds_nothing(babbling: Callable[[str], StdioServer]) -> None:
    """Neither the end of its input nor SIGTERM; nor does the child of such a one."""
    command = [sys.executable, "-c", WITH_A_SESSION, babbling("").args[1], "stubborn family"]
    program = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert program.stdout is not None
    server, child = map(int, (await program.stdout.readline()).split())
    program.kill()
    await program.wait()
    await until(lambda: gone(server) and gone(child))


async def test_sessions_share_one_process_that_watches(babbling: Callable[[str], StdioServer]) -> None:
    async with connect(babbling("")), connect(babbling("")):
        assert len(reaper()._groups) == 2
        watching = reaper()._process
    assert not reaper()._groups
    async with connect(babbling("")):
        assert reaper()._process is watching


def test_who_watches_is_started_again_where_it_was_killed() -> None:
    made = Reaper()
    groups = [subprocess.Popen(SLEEPER, start_new_session=True) for _ in range(3)]
    try:
        made.watch(groups[0].pid)
        assert made._process is not None
        made._process.kill()
        made._process.wait()
        made.watch(groups[1].pid)
        made.watch(groups[2].pid)
        made.forget(groups[2].pid)
        made.close()
        assert [one.wait(WAIT_S) for one in groups[:2]] == [-signal.SIGKILL] * 2
        assert groups[2].poll() is None, "what it was told to forget is left alone"
    finally:
        for one in groups:
            one.kill()
            one.wait()


def test_sessions_of_several_threads_share_it() -> None:
    made, groups = Reaper(), [subprocess.Popen(SLEEPER, start_new_session=True) for _ in range(4)]
    started: list[int] = []

    def counted() -> None:
        started.append(1)
        Reaper._start(made)

    made._start = counted  # type: ignore[method-assign]
    together = threading.Barrier(len(groups))

    def watch(group: int) -> None:
        together.wait(WAIT_S)
        made.watch(group)

    threads = [threading.Thread(target=watch, args=(one.pid,)) for one in groups]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert started == [1]
        made.close()
        assert [one.wait(WAIT_S) for one in groups] == [-signal.SIGKILL] * len(groups)
    finally:
        for one in groups:
            one.kill()
            one.wait()


FORKED = """
import os, subprocess, sys, time
from art.process.reaper import reaper

server = subprocess.Popen(sys.argv[1:], start_new_session=True)
reaper().watch(server.pid)
fork = os.fork()
if fork:
    print(server.pid, fork, flush=True)
time.sleep(1000)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_fork_that_outlives_its_program_keeps_no_server_alive() -> None:
    with StartedProgram([sys.executable, "-c", FORKED, *SLEEPER], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        server, fork = map(int, program.stdout.readline().split())
        try:
            program.kill()
            eventually(lambda: gone(server))
            assert not gone(fork)
        finally:
            os.kill(fork, signal.SIGKILL)
