"""Bodies as large as they may be keep nobody else waiting: the event loop goes on while they are read."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from dialect_bodies import DIALECTS, refusal, with_text
from live import KEY, Live, run_gateway
from scripted_engine import ScriptedEngine

from art.errors import RequestError
from art.rendering.library import LibraryRenderer
from art.server import http as bodies
from art.server.http import TenantThreads, decode_json
from core_speed import CoreSpeed
from waiting import until

MOST_WITHOUT_A_TURN = 0.06
"""Seconds that the process computes between two turns of the loop, of which a test allows four times as many;
reading at once takes from 0.33 to 2.4 s.
"""


@contextlib.asynccontextmanager
async def turns() -> AsyncIterator[list[float]]:
    """What the whole process computed between two turns of the event loop, the largest first.

    Computed seconds, not those of a clock: other programs on the machine do not count. As the server does it,
    garbage is collected rarely.
    """
    gaps: list[float] = []

    async def beat() -> None:
        last = time.process_time()
        while True:
            await asyncio.sleep(0)
            now = time.process_time()
            gaps.append(now - last)
            last = now

    enabled = gc.isenabled()
    gc.disable()
    task = asyncio.create_task(beat())
    try:
        yield gaps
    finally:
        task.cancel()
        gaps.sort(reverse=True)
        if enabled:
            gc.enable()


@pytest.fixture
async def client(tmp_path: Path, engine: ScriptedEngine, renderer: LibraryRenderer) -> AsyncIterator[Any]:
    """Of a model with so much room that hardly anything is too long for it."""
    async with run_gateway(tmp_path / "ledger.sqlite", engine, renderer, max_context=1_500_000) as live:
        headers = {"authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(base_url=live.url, headers=headers, timeout=300) as client:
            yield client


def _tool(number: int) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"key": {"type": "string"}}}
    return {"type": "function", "function": {"name": f"tool_{number}", "parameters": schema}}


def many_messages() -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[n % 2], "content": "hello"} for n in range(99_999)]


def many_ids() -> list[int]:
    return list(range(100_000, 101_000)) * 3_900


CHAT = {"model": "player", "max_tokens": 9}
HI = [{"role": "user", "content": "hello"}]
LARGE: list[tuple[str, Callable[[], dict[str, Any]], int, str]] = [
    ("/v1/chat/completions", lambda: {**CHAT, "messages": many_messages()}, 200, ""),
    ("/v1/responses", lambda: {"model": "player", "input": many_messages()}, 200, ""),
    (
        "/v1/chat/completions",
        lambda: {**CHAT, "messages": HI, "tools": [_tool(n) for n in range(20_000)]},
        400,
        "tools",
    ),
    (
        "/v1/chat/completions",
        lambda: {**CHAT, "messages": HI, "tools": [_tool(n) for n in range(2_000)]},
        200,
        "",
    ),
    (
        "/v1/chat/completions",
        lambda: {**CHAT, "messages": HI, "stop_token_ids": many_ids()},
        400,
        "stop_token_ids",
    ),
    ("/v1/completions", lambda: {"model": "player", "prompt": many_ids()}, 400, "prompt"),
    ("/v1/completions", lambda: {"model": "player", "prompt": [7] * 8_000_000}, 400, ""),
]
"""The bodies are made when they are sent: a worker that has collected this test does other ones, too."""


@pytest.mark.slow
@pytest.mark.parametrize(("path", "body", "status", "param"), LARGE)
async def test_the_loop_goes_on_while_a_large_body_is_read_and_rendered(
    client: httpx.AsyncClient, path: str, body: Callable[[], dict[str, Any]], status: int, param: str
) -> None:
    sent, speed = orjson.dumps(body()), CoreSpeed()
    async with turns() as gaps:
        reply = await client.post(path, content=sent)
    assert reply.status_code == status, reply.text[:500]
    if param:
        assert refusal(reply, path)["param"] == param
    assert gaps[0] < speed.allowed(MOST_WITHOUT_A_TURN), gaps[:5]


@pytest.mark.slow
@pytest.mark.parametrize("path", DIALECTS)
async def test_the_loop_goes_on_while_as_much_text_as_may_be_is_read(live: Live, path: str) -> None:
    sent = orjson.dumps(with_text(path, "more, and more. " * 1_930_000))
    headers, speed = {"authorization": f"Bearer {KEY}"}, CoreSpeed()
    async with turns() as gaps, httpx.AsyncClient(headers=headers, timeout=300) as client:
        reply = await client.post(f"{live.url}{path}", content=sent)
    assert (reply.status_code, refusal(reply, path)["code"]) == (400, "context_length_exceeded")
    assert gaps[0] < speed.allowed(MOST_WITHOUT_A_TURN), gaps[:5]


@pytest.mark.slow
@pytest.mark.parametrize("path", DIALECTS)
async def test_a_large_body_is_read_by_a_thread(
    live: Live, client: httpx.AsyncClient, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[int] = []
    dialect = live.app._dialects[path]
    read = dialect.read
    monkeypatch.setattr(
        dialect, "read", lambda *given: (readers.append(threading.get_ident()), read(*given))[1]
    )
    headers = {"authorization": f"Bearer {KEY}"}
    for text in ("hello", "hello " * 30_000):
        await client.post(f"{live.url}{path}", json=with_text(path, text), headers=headers)
    assert readers[0] == threading.get_ident() != readers[1]


@pytest.mark.slow
async def test_tools_of_several_megabytes_are_written_by_a_thread(
    client: httpx.AsyncClient, renderer: LibraryRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers: list[int] = []
    render = LibraryRenderer.render
    monkeypatch.setattr(
        LibraryRenderer,
        "render",
        lambda *given, **more: (writers.append(threading.get_ident()), render(*given, **more))[1],
    )
    tool = {"type": "function", "function": {"name": "f", "description": "what it does " * 10_000}}
    for tools in ([_tool(1)], [tool]):
        for path in ("/v1/chat/completions", "/v1/messages/count_tokens"):
            body = {"model": "player", "messages": HI, "tools": _spelled(tools, path)}
            assert (await client.post(path, json=body)).status_code == 200
    here = threading.get_ident()
    assert [writer == here for writer in writers] == [True, True, False, False]


def _spelled(tools: list[dict[str, Any]], path: str) -> list[dict[str, Any]]:
    if path == "/v1/chat/completions":
        return tools
    functions = [tool["function"] for tool in tools]
    return [
        {
            "name": function["name"],
            "description": function.get("description", ""),
            "input_schema": function.get("parameters", {"type": "object"}),
        }
        for function in functions
    ]


async def test_large_bodies_of_one_tenant_are_read_in_turn() -> None:
    beside, together, most = TenantThreads(), [0], [0]

    def work(tenant: str) -> None:
        together[0] += 1
        most[0] = max(most[0], together[0])
        time.sleep(0.01)
        together[0] -= 1

    await asyncio.gather(*(beside.run(bodies.LARGE + 1, "alice", work, "alice") for _ in range(8)))
    assert most == [1]
    assert not beside._turns


async def test_the_turn_of_a_client_that_has_gone_lasts_until_its_work_has_ended() -> None:
    beside, together, most = TenantThreads(), [0], [0]
    goes_on = threading.Event()

    def work() -> None:
        together[0] += 1
        most[0] = max(most[0], together[0])
        goes_on.wait(60)
        together[0] -= 1

    def ask() -> asyncio.Task[None]:
        return asyncio.create_task(beside.run(bodies.LARGE + 1, "alice", work))

    async with asyncio.timeout(60):
        for _ in range(4):
            gone = ask()
            await asyncio.sleep(0.05)  # it has begun, or waits
            gone.cancel()
        assert await beside.run(bodies.LARGE + 1, "bob", lambda: "bob's turn") == "bob's turn"
        goes_on.set()
        await ask()
    assert most == [1]


def _values(rnd: random.Random, depth: int = 0) -> Any:
    if depth > 4 or rnd.random() < 0.3:
        texts = ["", 'ä€😀\n"\\', "\u2028" * 70, "x" * rnd.choice([3, 70, 300, 2000]), "é\\" * 300]
        return rnd.choice([1, -2.5, 1e30, 2**53, True, False, None, *texts])
    if rnd.random() < 0.5:
        return [_values(rnd, depth + 1) for _ in range(rnd.randrange(6))]
    names = ["a", "b", "ü", "c\n", "a"]
    return {rnd.choice(names) * rnd.randrange(1, 3): _values(rnd, depth + 1) for _ in range(rnd.randrange(6))}


def _flawed(rnd: random.Random, body: bytes) -> bytes:
    changed = bytearray(body)
    for _ in range(rnd.randrange(1, 3)):
        place = rnd.randrange(len(changed)) if changed else 0
        if changed and rnd.random() < 0.5:
            del changed[place]
        else:
            changed[place : place + 1] = bytes([rnd.choice(b'[]{},:"\\01 ntf\xc3')])
    return bytes(changed)


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(bodies, "_IN_PIECES", 0)
    yield


@pytest.mark.slow
@pytest.mark.usefixtures("in_pieces")
def test_what_is_read_in_pieces_is_what_the_parser_reads() -> None:
    rnd = random.Random(5)
    for _ in range(1500):
        indent = rnd.choice([None, None, 1])
        body = json.dumps(_values(rnd), ensure_ascii=rnd.random() < 0.5, indent=indent).encode()
        assert decode_json(body) == orjson.loads(body)
        flawed = _flawed(rnd, body)
        try:
            expected = orjson.loads(flawed)
        except orjson.JSONDecodeError:
            with pytest.raises(RequestError) as refused:
                decode_json(flawed)
            assert refused.value.code == "invalid_json"
        else:
            assert decode_json(flawed) == expected


@pytest.mark.usefixtures("in_pieces")
def test_long_texts_and_lists_of_numbers_are_read_in_pieces() -> None:
    for value in ("ä😀x\\" * 100_000, list(range(100_000)), [0.5, [1] * 70_000, -3], ["\ud83d\ude00" * 9000]):
        for plain in (True, False):
            body = json.dumps(value, ensure_ascii=plain).encode("utf-8", "surrogatepass")
            if plain or not isinstance(value, list) or not isinstance(value[0], str):
                assert decode_json(body) == orjson.loads(body)


@pytest.mark.slow
@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"[" * 254 + b"]" * 254, ""),
        (b"[" * 255 + b"]" * 255, "nested_too_deeply"),
        (b"[" * 100_000, "nested_too_deeply"),
        (b"[" + b'"",' * 1_000_001 + b"1]", "context_length_exceeded"),
        (b"[,1]", "invalid_json"),
        (b"[1,]", "invalid_json"),
        (b'{"a":1,}', "invalid_json"),
        (b"", "invalid_json"),
        (b'"\\ud800"', "invalid_json"),
        (b"NaN", "invalid_json"),
    ],
)
def test_what_no_pieces_are_read_of(body: bytes, code: str) -> None:
    if not code:
        assert decode_json(body) == orjson.loads(body)
        return
    with pytest.raises(RequestError) as refused:
        decode_json(body)
    assert refused.value.code == code


async def test_what_a_refused_request_sent_is_forgotten_at_once() -> None:
    """The server collects garbage so rarely that a body in a cycle of references would stay for hours."""

    class Body:
        pass

    def refuse(body: Body) -> None:
        raise RequestError("too many", status=400)

    async def ask() -> weakref.ref[Body]:
        body = Body()
        with contextlib.suppress(RequestError):
            await TenantThreads().run(1 << 20, "alice", refuse, body)
        return weakref.ref(body)

    gc.collect()
    gc.disable()
    try:
        body = await ask()
        await until(lambda: body() is None)  # its thread ends a moment after its error is here
    finally:
        gc.enable()
