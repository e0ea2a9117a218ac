"""Replies over HTTP that are too much, of real servers: each is one clear error that ends one session."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import resource
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from agent_endpoint import DONE, Agent, call, script

from art.errors import McpError, McpTimeoutError
from art.rewards.function_reward import FunctionReward
from art.runs.folder import failures_of
from art_extensions.scenarios.mcp import HttpServer, connect, reply_limits
from art_extensions.scenarios.mcp.reply_limits import MESSAGE_LIMIT, MOST_ITEMS, MOST_VALUES
from art_extensions.scenarios.mcp.types import PlannedScenario
from art_extensions.scenarios.mcp_rl.mcp_run import ScenarioRollouts
from art_extensions.scenarios.mcp_rl.settings import TrainSettings
from loop_time import watched_callbacks
from serving import serving_in_a_thread

pytestmark = pytest.mark.slow
JSON, EVENTS = "application/json", "text/event-stream"
TEXT = {"type": "text", "text": "x"}


def result(identity: Any, **values: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": identity, "result": values}).encode()


def endless(piece: bytes, first: bytes = b"") -> Iterator[bytes]:
    yield first
    while True:
        yield piece


def text_reply(identity: Any, size: int) -> bytes:
    return result(identity, content=[{"type": "text", "text": "x" * size}])


def bomb(size: int) -> bytes:
    packer = zlib.compressobj(wbits=31)
    zeros = b" " * (1 << 20)
    return b"".join(packer.compress(zeros) for _ in range(size >> 20)) + packer.flush()


Body = Callable[[Any], tuple[dict[str, str], Iterator[bytes]]]
NOTICE = b'data: {"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}\n\n'
HOSTILE: dict[str, tuple[Body, str]] = {
    "a large body": (
        lambda i: ({"content-type": JSON}, iter([text_reply(i, MESSAGE_LIMIT)])),
        "sent a message of more than 4 MB",
    ),
    "an endless body": (
        lambda i: ({"content-type": JSON}, endless(b"x" * 4096, b'{"jsonrpc": "')),
        "sent a message of more than 4 MB",
    ),
    "a large event": (
        lambda i: ({"content-type": EVENTS}, iter([b"data: " + text_reply(i, MESSAGE_LIMIT), b"\n\n"])),
        "sent a message of more than 4 MB",
    ),
    "an endless event": (
        lambda i: ({"content-type": EVENTS}, endless(b"data: x\r\n" * 500)),
        "sent a message of more than 4 MB",
    ),
    "an endless comment": (
        lambda i: ({"content-type": EVENTS}, endless(b": still there\n" * 500)),
        "sent a message of more than 4 MB",
    ),
    "endless events": (
        lambda i: ({"content-type": EVENTS}, endless(b": ping\n\n" * 5000)),
        "sent a reply of more than 1 MB",
    ),
    "endless messages": (
        lambda i: ({"content-type": EVENTS}, endless(NOTICE * 100)),
        "sent a reply of more than 1 MB",
    ),
    "a packed bomb": (
        lambda i: ({"content-type": JSON, "content-encoding": "gzip"}, iter([bomb(64 << 20)])),
        "sent a message of more than 4 MB",
    ),
    "a packed bomb of events": (
        lambda i: ({"content-type": EVENTS, "content-encoding": "gzip"}, iter([bomb(64 << 20)])),
        "sent a message of more than 4 MB",
    ),
    "another packing": (
        lambda i: ({"content-type": JSON, "content-encoding": "br"}, iter([b"xxxx"])),
        "packed a reply with 'br', which was not asked for",
    ),
    "a damaged body": (
        lambda i: ({"content-type": JSON, "content-encoding": "gzip"}, iter([b"xxxx"])),
        "sent a damaged reply",
    ),
    "many items": (
        lambda i: ({"content-type": JSON}, iter([result(i, content=[TEXT] * (MOST_ITEMS + 1))])),
        f"sent a message with {MOST_ITEMS + 1} items",
    ),
    "many values": (
        lambda i: (
            {"content-type": EVENTS},
            iter([b"data:" + result(i, content=[], x=[[]] * 60_000) + b"\n\n"]),
        ),
        f"sent a message with more than {MOST_VALUES} values",
    ),
    "a large error": (
        lambda i: ({"content-type": JSON, ":status": "400"}, endless(b"x" * 4096)),
        "sent a message of more than 4 MB",
    ),
}


class HostileServer:
    """An application that is an MCP server until its tool `go` is called."""

    def __init__(self, body: Body) -> None:
        self.body = body

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        content, more = b"", True
        while more:
            event = await receive()
            content += event.get("body", b"")
            more = event.get("more_body", False)
        asked = json.loads(content or b"{}")
        headers, pieces = self._answer(asked)
        status = int(headers.pop(":status", 200 if pieces else 202))
        coded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": coded})
        gone = asyncio.create_task(receive())  # the client's end
        for piece in pieces or ():
            if gone.done():
                break
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)
        gone.cancel()
        await send({"type": "http.response.body", "body": b""})

    def _answer(self, asked: dict[str, Any]) -> tuple[dict[str, str], Iterator[bytes] | None]:
        identity, method = asked.get("id"), asked.get("method")
        tool = {"name": "go", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
        if method == "tools/call":
            return self.body(identity)
        if method == "initialize":
            about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
            told = result(identity, protocolVersion=asked["params"]["protocolVersion"], **about)
        elif method == "tools/list":
            told = result(identity, tools=[tool])
        elif method is None:
            return {":status": "405"}, None
        elif identity is None:
            return {}, None
        else:
            error = {"code": -32601, "message": "no such method"}
            told = json.dumps({"jsonrpc": "2.0", "id": identity, "error": error}).encode()
        return {"content-type": JSON}, iter([told])


@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_reply_that_is_too_much_ends_its_session_with_the_reason(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    body, said = HOSTILE[kind]
    if "1 MB" in said:
        monkeypatch.setattr(reply_limits, "REPLY_LIMIT", 1 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with serving_in_a_thread(HostileServer(body)) as url:
        with watched_callbacks() as found, caplog.at_level(logging.INFO):
            async with connect(url) as session:
                with pytest.raises(McpError) as error:
                    await session.call("go", timeout=60)
                assert said in str(error.value) and not isinstance(error.value, McpTimeoutError)
                assert url in str(error.value), "it names the server"
                with pytest.raises(McpError, match=said[:20]):
                    await session.call("go", timeout=60)
    assert not found.too_long()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10, "KiB"
    assert len(caplog.text) < 20_000, "what floods the session does not flood the log"


def whole(identity: Any) -> bytes:
    """A message that is as large as is allowed, but for a few KB."""
    items = [TEXT] * (MOST_ITEMS - 1)
    rest = MESSAGE_LIMIT - 600 * 1024
    return result(identity, content=[{"type": "text", "text": "é" * (rest // 6)}, *items])


def small(identity: Any) -> bytes:
    return text_reply(identity, 5)


@pytest.mark.parametrize(
    ("length", "headers", "body"),
    [
        (500_000, {"content-type": JSON}, lambda i: [whole(i)]),
        (500_000, {"content-type": JSON, "content-encoding": "gzip"}, lambda i: [gzip.compress(whole(i))]),
        (500_000, {"content-type": JSON, "content-encoding": "deflate"}, lambda i: [zlib.compress(whole(i))]),
        (
            500_000,
            {"content-type": EVENTS},
            lambda i: [NOTICE, b": ping\r\n\r\n", b"data: ", whole(i), b"\n\n"],
        ),
        (5, {"content-type": EVENTS}, lambda i: [b"data:", *(b"%c" % one for one in small(i)), b"\r", b"\r"]),
        (5, {"content-type": EVENTS}, lambda i: [b"data: " + small(i) + b"\r\n", b"\r", b"\n", NOTICE]),
    ],
)
async def test_what_is_allowed_arrives_whole_and_holds_nobody_up(
    length: int, headers: dict[str, str], body: Callable[[Any], list[bytes]]
) -> None:
    with serving_in_a_thread(HostileServer(lambda i: (dict(headers), iter(body(i))))) as url:
        async with connect(url) as session:
            with watched_callbacks() as found:
                got = await session.call("go", timeout=60)
    assert len(got.text) >= length and ("\u00e9" in got.text) == (length > 5)
    assert not found.too_long()


async def test_a_server_of_the_sdk_that_answers_too_much(http_address: str) -> None:
    async with connect(http_address) as session:
        assert len((await session.call("flood", {"characters": 3_000_000})).text) == 3_000_000
        with pytest.raises(McpError, match="sent a message of more than 4 MB"):
            await session.call("flood", {"characters": 5_000_000})
    async with connect(http_address) as session:
        assert (await session.call("add", {"a": 1, "b": 2})).text == "3", "the server goes on"


async def test_it_costs_one_rollout(agent: Agent) -> None:
    asked: list[Any] = []

    def once(identity: Any) -> tuple[dict[str, str], Iterator[bytes]]:
        asked.append(identity)
        return {"content-type": JSON}, iter([text_reply(identity, MESSAGE_LIMIT if len(asked) == 1 else 5)])

    agent.policy = script({"tool_calls": [call("go")]}, DONE)
    model: Any = agent.model()
    with serving_in_a_thread(HostileServer(once)) as url:
        groups = await ScenarioRollouts(model, TrainSettings(concurrency=1), HttpServer(url=url)).groups(
            [PlannedScenario("Go.", 1)],
            4,
            what="test",
            seeded=False,
            after_each=FunctionReward(lambda trajectory: 0.5, name="half").score_group,
        )
    (group,) = groups
    assert len(group) == 3 and len(group.exceptions) == 1
    (reason,) = failures_of(groups)
    assert reason.startswith("McpError: MCP server") and "sent a message of more than 4 MB" in reason


async def test_a_reply_that_trickles_for_ever_costs_the_call_s_time() -> None:
    async def trickle(scope: Any, receive: Any, send: Any) -> None:
        server = HostileServer(lambda i: ({"content-type": EVENTS}, iter([b": ping\n\n"])))

        async def slowly(event: Any) -> None:
            await send(event)
            while event.get("more_body") and b"ping" in event["body"]:
                await asyncio.sleep(0.05)
                await send(event)

        await server(scope, receive, slowly)

    with serving_in_a_thread(trickle) as url:
        async with connect(url) as session:
            with pytest.raises(McpTimeoutError, match=r"did not call 'go' within 0\.3 s"):
                await session.call("go", timeout=0.3)
