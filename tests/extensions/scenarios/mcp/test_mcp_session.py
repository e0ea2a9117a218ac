from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any

import mcp
import pytest
from starlette.responses import JSONResponse

from art.errors import ConfigurationError, McpError, McpTimeoutError
from art_extensions.scenarios.mcp import (
    HttpServer,
    InProcessServer,
    MCPPrompt,
    MCPResource,
    MCPResourceTemplate,
    connect,
)
from art_extensions.scenarios.mcp.transports import http_package
from serving import serving
from troublesome import create_server
from waiting import DEADLINE_S


@pytest.fixture(params=["stdio", "http", "in process"])
def server(request: pytest.FixtureRequest) -> Any:
    if request.param == "stdio":
        return request.getfixturevalue("program")
    return request.getfixturevalue("http_address") if request.param == "http" else create_server


@pytest.mark.slow
async def test_every_way_to_a_server_gives_the_same_session(server: Any) -> None:
    async with connect(server) as session:
        tools = {tool.name: tool for tool in await session.tools()}
        assert tools["add"].description == "Add two numbers."
        assert tools["add"].parameters["required"] == ["a", "b"]
        marks = {name: tools[name].read_only for name in ("add", "write", "unmarked")}
        assert marks == {"add": True, "write": False, "unmarked": None}
        resource = MCPResource("trouble://list", "list", "All troubles.", "text/plain")
        assert await session.resources() == [resource]
        assert await session.read_resource("trouble://list") == "fire, water"
        template = MCPResourceTemplate(
            "trouble://{kind}/news", "news", "What is new about one.", "text/plain"
        )
        assert await session.resource_templates() == [template]
        assert await session.read_resource("trouble://fire/news") == "no fire today"
        assert await session.documents() == [resource, template]
        arguments = [{"name": "trouble", "required": True}]
        assert await session.prompts() == [MCPPrompt("advice", "What to do about it.", arguments)]
        assert (await session.call("add", {"a": 2, "b": 3})).text == "5"
        failed = await session.call("refuse")
        assert failed.is_error and "no such place" in failed.text
        wrong = await session.call("add", {"a": "two"})
        assert wrong.is_error and "integer" in wrong.text
        with pytest.raises(McpTimeoutError, match=r"did not call 'hang' within 0\.2 s"):
            await session.call("hang", timeout=0.2)
        assert (await session.call("add", {"a": 1, "b": 1})).text == "2", "the session goes on"


@pytest.mark.slow
async def test_sessions_are_used_and_left_by_whichever_task() -> None:
    """The SDK's cancel scopes would not allow this by themselves."""
    session_context = connect(create_server)
    session = await asyncio.create_task(session_context.__aenter__())
    sums = await asyncio.gather(*(session.call("add", {"a": n, "b": n}) for n in range(20)))
    assert [result.text for result in sums] == [str(2 * n) for n in range(20)]
    await asyncio.create_task(session_context.__aexit__(None, None, None))

    async def one(n: int) -> str:
        async with connect(create_server) as own:
            await asyncio.sleep(0.001 * (n % 3))
            if n % 4 == 3:
                raise ValueError("a rollout that fails")
            return (await own.call("add", {"a": n, "b": 1})).text

    ended = await asyncio.gather(*(one(n) for n in range(12)), return_exceptions=True)
    assert [str(end) for end in ended] == [
        "a rollout that fails" if n % 4 == 3 else str(n + 1) for n in range(12)
    ]


async def test_an_http_server_that_refuses_or_goes_away_is_an_error_at_once() -> None:
    open_to, busy = ["k"], [0]
    application = create_server().streamable_http_app()

    async def gate(scope: Any, receive: Any, send: Any) -> None:
        """Lets in who has the key."""
        keys = [value.decode() for name, value in scope.get("headers", ()) if name == b"x-key"]
        if scope["type"] == "http" and keys != open_to:
            await JSONResponse({"error": "who are you?"}, status_code=401)(scope, receive, send)
        elif busy[0] > 0:
            busy[0] -= 1
            late = {"retry-after": "0"}
            await JSONResponse({"error": "busy"}, status_code=429, headers=late)(scope, receive, send)
        else:
            await application(scope, receive, send)

    running = serving(gate, ws="none", lifespan="auto", timeout_graceful_shutdown=1)
    address = f"{await running.__aenter__()}/mcp"
    with pytest.raises(McpError, match="HTTP status 401"):
        async with connect(address):
            pass
    with pytest.raises(McpError, match="HTTP status 404; the path of most MCP servers is /mcp"):
        async with connect(HttpServer(url=f"{address}typo", headers={"x-key": "k"})):
            pass
    async with connect(HttpServer(url=address, headers={"x-key": "k"})) as session:
        assert (await session.call("add", {"a": 1, "b": 2})).text == "3"
        open_to.clear()
        with pytest.raises(McpError, match="HTTP status 401"):
            await session.call("add", {"a": 1, "b": 2}, timeout=60)
        open_to.append("k")
        busy[0] = 2
        if hasattr(mcp, "Client"):  # a status ends a session of the SDK's version 1
            assert (await session.call("add", {"a": 1, "b": 2})).text == "3", "back again, and asked again"
            busy[0] = 99
            with pytest.raises(McpError, match="HTTP status 429"):
                await session.call("add", {"a": 1, "b": 2}, timeout=60)
        busy[0] = 0
        await running.__aexit__(None, None, None)
        with pytest.raises(McpError) as error:
            await session.call("add", {"a": 1, "b": 2}, timeout=60)
    assert not isinstance(error.value, McpTimeoutError)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "kind", "said"),
    [
        ("no-such-program --x", McpError, "No such file"),
        ([sys.executable, "-Sc", "raise SystemExit('no license')"], McpError, "no license"),
        ("http://127.0.0.1:9/mcp", McpError, "ConnectError"),
        ([sys.executable, "-Sc", "input(); input()"], McpTimeoutError, "not ready within 0.3 s"),
        (lambda: 7, McpError, "gave a int"),
    ],
)
async def test_a_server_that_is_not_there_is_named_with_the_reason(
    server: Any, kind: type[McpError], said: str
) -> None:
    with pytest.raises(kind) as error:
        async with connect(server, timeout=0.3 if kind is McpTimeoutError else DEADLINE_S):
            pass
    assert said in str(error.value)


async def test_long_answers_are_cut_and_say_so() -> None:
    async with connect(create_server) as session:
        whole = await session.call("flood", {"characters": 3_000_000})
        assert (len(whole.text), whole.truncated) == (3_000_000, False)
        cut = await session.call("flood", {"characters": 3_000_000}, limit=1000)
    assert cut.truncated and len(cut.text) < 1100
    assert cut.text.startswith("ax") and cut.text.endswith("xz")
    assert "2999000 characters are left out" in cut.text


async def test_tools_that_may_write_are_refused_unless_allowed(tmp_path: Path) -> None:
    target = tmp_path / "written"
    arguments = {"path": str(target), "text": "hello"}
    async with connect(create_server) as session:
        for name in ("write", "unmarked"):
            assert not session.allows(name)
            with pytest.raises(ConfigurationError, match="may write: allow it with"):
                await session.call(name, arguments)
        assert not target.exists()
    async with connect(create_server, allow_writes=["write"]) as session:
        await session.call("write", arguments)
        assert target.read_text() == "hello"
        assert not session.allows("unmarked")
    async with connect(create_server, allow_writes=True) as session:
        assert session.allows("unmarked")


async def test_people_may_say_that_a_tool_only_reads() -> None:
    named = InProcessServer(server=create_server, read_only=("unmarked",))
    async with connect(named) as session:
        assert (await session.call("unmarked")).text == "unmarked"
        assert not session.allows("write")


async def test_unknown_tools_are_refused_with_the_known_ones() -> None:
    async with connect(create_server) as session:
        with pytest.raises(ConfigurationError, match=r"no tool 'subtract'; it has .*'add'"):
            await session.call("subtract")
    for wrong in (["wirte"], "write"):
        with pytest.raises(ConfigurationError, match="allow_writes="):
            async with connect(create_server, allow_writes=wrong):
                pass


@pytest.mark.slow
async def test_keys_reach_the_server_and_no_log(
    http_address: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    http = http_package()
    sent: list[Any] = []
    plain = http.AsyncHTTPTransport.handle_async_request

    async def watched(self: Any, request: Any) -> Any:
        sent.append(request)
        return await plain(self, request)

    monkeypatch.setattr(http.AsyncHTTPTransport, "handle_async_request", watched)
    server = HttpServer(url=f"{http_address}?api_key=s3cret", headers={"X-Key": "s3cret too"})
    with caplog.at_level(logging.DEBUG):
        async with connect(server) as session:
            assert (await session.call("add", {"a": 1, "b": 2})).text == "3"
    assert sent and all(request.url.params["api_key"] == "s3cret" for request in sent)
    assert all(request.headers["x-key"] == "s3cret too" for request in sent)
    assert caplog.text and "s3cret" not in caplog.text


def test_a_server_object_leaves_the_loggers_of_its_process_alone() -> None:
    before = list(logging.getLogger().handlers), logging.getLogger().level
    create_server()
    assert (list(logging.getLogger().handlers), logging.getLogger().level) == before
