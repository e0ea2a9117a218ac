from __future__ import annotations

import logging
import re
import sys
from pathlib import Path

import pytest
from test_mcp_session import gone

from art.errors import McpError, McpTimeoutError
from art.mcp import StdioServer, connect, stdio


def babbling(mode: str) -> StdioServer:
    program = str(Path(__file__).with_name("babbling.py"))
    return StdioServer(command=sys.executable, args=("-S", program, mode))


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("one endless line", "wrote a line of more than 1 MB"),
        ("endless lines", "wrote 1000 lines that are no messages, such as 'progress: 1 %'"),
    ],
)
async def test_a_server_that_floods_its_output_is_given_up_at_once(
    mode: str, said: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
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


async def test_what_a_dead_server_leaves_behind_is_ended_too() -> None:
    """Its child holds the pipes open: neither the end of the output nor the session's end would tell."""
    async with connect(babbling("leaves a child")) as session:
        with pytest.raises(McpError, match="ended with exit code 3") as error:
            await session.call("go", timeout=60)
    (child,) = re.findall(r"child (\d+)", str(error.value))
    assert await gone(int(child))


async def test_a_server_that_does_not_heed_its_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "GRACE_S", 0.2)
    async with connect(babbling("stubborn")) as session:
        pid = int((await session.call("go")).text)
    assert await gone(pid)
