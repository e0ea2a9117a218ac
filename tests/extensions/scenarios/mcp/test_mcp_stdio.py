from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from art.errors import McpError, McpTimeoutError
from art_extensions.scenarios.mcp import StdioServer, connect
from art_extensions.scenarios.mcp import transports as stdio
from waiting import gone, until

pytestmark = pytest.mark.slow

Babbling = Callable[[str], StdioServer]


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("one endless line", "wrote a line of more than 1 MB"),
        ("endless lines", "wrote 1000 lines that are no messages, such as 'progress: 1 %'"),
    ],
)
async def test_a_server_that_floods_its_output_is_given_up_at_once(
    babbling: Babbling,
    mode: str,
    said: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stdio, "LINE_LIMIT", 1 << 20)
    monkeypatch.setattr(stdio, "GRACE_S", 0.2)
    with caplog.at_level(logging.INFO):
        async with connect(babbling(mode)) as session:
            assert [tool.name for tool in await session.tools()] == ["go"], "a greeting is no trouble"
            with pytest.raises(McpError) as error:
                await session.call("go", timeout=60)
    assert said in str(error.value) and not isinstance(error.value, McpTimeoutError)
    assert "progress" not in caplog.text, "what floods the output does not flood the log"


async def test_what_a_dead_server_leaves_behind_is_ended_too(babbling: Babbling) -> None:
    """Its child holds the pipes open: neither the end of the output nor the session's end would tell."""
    async with connect(babbling("leaves a child")) as session:
        with pytest.raises(McpError, match="ended with exit code 3") as error:
            await session.call("go", timeout=60)
    (child,) = re.findall(r"child (\d+)", str(error.value))
    await until(lambda: gone(int(child)))


async def test_each_session_has_a_process_of_its_own_that_ends_with_it(babbling: Babbling) -> None:
    async with connect(babbling("")) as first, connect(babbling("")) as second:
        pids = [int((await session.call("go")).text) for session in (first, second)]
        assert len({*pids, os.getpid()}) == 3
    await until(lambda: gone(pids[0]) and gone(pids[1]))


async def test_a_server_that_dies_in_a_call_is_an_error_at_once_with_its_last_words(
    babbling: Babbling,
) -> None:
    async with connect(babbling("dies")) as session:
        with pytest.raises(McpError) as error:
            await session.call("go", timeout=60)
        assert not isinstance(error.value, McpTimeoutError)
        assert "ended with exit code 7" in str(error.value) and "the disk is on fire" in str(error.value)
        with pytest.raises(McpError):
            await session.call("go")


async def test_a_program_does_not_inherit_our_keys(
    babbling: Babbling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    own = StdioServer(command=babbling("").command, args=babbling("").args, env={"WANTED": "yes"})
    async with connect(own) as session:
        started = Path(f"/proc/{(await session.call('go')).text}/environ")
        environment = await asyncio.to_thread(started.read_bytes)
    assert b"WANTED=yes" in environment and b"PATH=" in environment
    assert b"s3cret" not in environment


async def test_a_server_that_does_not_heed_its_end_is_killed(
    babbling: Babbling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "GRACE_S", 0.2)
    async with connect(babbling("stubborn")) as session:
        pid = int((await session.call("go")).text)
    await until(lambda: gone(pid))
