"""Servers that misbehave, and a model that is a function."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_endpoint import DONE, Agent, script

from art.process.resources import find_free_tcp_port
from art_extensions.scenarios.mcp import StdioServer, connect, rollout
from waiting import DEADLINE_S, eventually

PROGRAM = Path(__file__).parents[3] / "troublesome.py"
BABBLING = Path(__file__).with_name("babbling.py")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK, which a server imports, takes it over half a minute where others want the core, too."""
    defaults = connect.__wrapped__.__kwdefaults__  # type: ignore[attr-defined]
    monkeypatch.setitem(defaults, "timeout", DEADLINE_S)
    monkeypatch.setattr(sys.modules[rollout.__module__], "START_S", DEADLINE_S)


@pytest.fixture
def babbling() -> Callable[[str], StdioServer]:
    """A small server that starts at once, by what calling its tool `go` does."""

    def make(mode: str) -> StdioServer:
        # Without `site` the interpreter is up in no time.
        return StdioServer(command=sys.executable, args=("-S", str(BABBLING), mode))

    return make


@pytest.fixture
def program() -> StdioServer:
    """The troublesome server as a program."""
    return StdioServer(command=sys.executable, args=(str(PROGRAM),))


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def http_address() -> Iterator[str]:
    """The troublesome server over streamable HTTP."""
    port = find_free_tcp_port()
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), "--http", str(port)],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        eventually(lambda: listens(port))
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Agent]:
    with Agent() as agent:
        yield agent


@pytest.fixture
def agent(endpoint: Agent) -> Agent:
    """A model that is a function, behind a real endpoint."""
    endpoint.policy = script(DONE)
    endpoint.asked.clear()
    return endpoint
