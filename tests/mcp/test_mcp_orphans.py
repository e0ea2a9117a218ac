"""No server outlives the program that started it, however that ends."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from art.mcp import StdioServer, connect
from art.process.reaper import Reaper, reaper
from waiting import gone, until

WITH_A_SESSION = """
import asyncio, sys
from art.mcp import StdioServer, connect

async def main():
    async with connect(StdioServer(command=sys.executable, args=("-S", *sys.argv[1:]))) as session:
        print((await session.call("go")).text, flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""
SLEEPER = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(1000)"]
WAIT_S = 60


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
    assert reaper()._groups == set()
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
