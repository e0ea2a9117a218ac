"""What clients get wrong, in every dialect: an error in its shape, never a failure of the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from dialect_bodies import DIALECTS, refusal, with_text
from live import KEY, Live
from scripted_engine import Script

from waiting import until

pytestmark = pytest.mark.slow

SAMPLING = [path for path in DIALECTS if not path.endswith("count_tokens")]


@pytest.fixture
async def client(live: Live) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=live.url, headers=headers, timeout=240) as client:
        yield client


def test_every_dialect_is_asked_below(live: Live) -> None:
    assert set(live.app._dialects) == set(DIALECTS)


@pytest.mark.parametrize("path", DIALECTS)
async def test_the_bodies_themselves_are_good(client: httpx.AsyncClient, path: str) -> None:
    reply = await client.post(path, json=DIALECTS[path])
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize("path", DIALECTS)
async def test_models_that_do_not_answer(live: Live, client: httpx.AsyncClient, path: str) -> None:
    for name in (
        "nobody",
        "player@99",
        "games/nobody",
        "player@x",
        "../player",
        "player\0",
        "",
        "x" * 100_000,
    ):
        reply = await client.post(path, json={**DIALECTS[path], "model": name})
        assert reply.status_code == (404 if name else 400)
        error = refusal(reply, path)
        assert error["code"] == ("model_not_found" if name else "invalid_value")
        assert len(error["message"]) < 5000
    live.catalog.remove("games", "player")
    reply = await client.post(path, json=DIALECTS[path])
    assert (reply.status_code, refusal(reply, path)["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("path", SAMPLING)
async def test_an_adapter_that_the_engine_dropped(live: Live, client: httpx.AsyncClient, path: str) -> None:
    """The catalog has it still: the engine was restarted a moment ago, and the request may come again."""
    live.engine.adapters.clear()
    reply = await client.post(path, json=DIALECTS[path])
    assert (reply.status_code, refusal(reply, path)["code"]) == (503, "adapter_not_loaded")


@pytest.mark.parametrize("path", DIALECTS)
async def test_wrong_keys(live: Live, client: httpx.AsyncClient, path: str) -> None:
    for headers in (
        {"authorization": "Bearer wrong"},
        {"authorization": ""},
        {"authorization": "Basic eA=="},
    ):
        reply = await client.post(path, json=DIALECTS[path], headers=headers)
        assert (reply.status_code, refusal(reply, path)["code"]) == (401, "invalid_api_key")
        assert KEY not in reply.text


@pytest.mark.parametrize("path", SAMPLING)
async def test_prompts_longer_than_the_context(client: httpx.AsyncClient, path: str) -> None:
    for text in ("x" * 9000, "x" * 1_000_000):
        reply = await client.post(path, json=with_text(path, text))
        error = refusal(reply, path)
        assert (reply.status_code, error["code"]) == (400, "context_length_exceeded")
        assert "4096" in error["message"]


MALFORMED = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"3",
    b'"text"',
    b"\xff\xfe",
    b"\0",
    b'{"model": "player", "model"}',
    b'{"model": NaN}',
    b'{"model": 1e999}',
    b'{"model": "\\ud800"}',
    b'{"model": "player"} trailing',
]
DEEP = [b"[" * 100_000, b'{"model":' * 100_000]


@pytest.mark.parametrize("path", DIALECTS)
async def test_bodies_that_are_no_requests(client: httpx.AsyncClient, path: str) -> None:
    for body in MALFORMED:
        reply = await client.post(path, content=body)
        error = refusal(reply, path)
        assert reply.status_code == 400, body[:50]
        assert error["code"] in ("invalid_json", "missing_parameter", "invalid_value"), body[:50]
    for body in (*DEEP, json.dumps({**DIALECTS[path], "tools": nested(900)})):
        deep = await client.post(path, content=body)
        assert (deep.status_code, refusal(deep, path)["code"]) == (400, "nested_too_deeply")


@pytest.mark.parametrize("path", DIALECTS)
async def test_the_last_of_two_equal_keys_counts(client: httpx.AsyncClient, path: str) -> None:
    body = json.dumps(DIALECTS[path])
    for twice, status in (('{"model": "nobody",' + body[1:], 200), (body[:-1] + ', "model": "nobody"}', 404)):
        assert (await client.post(path, content=twice)).status_code == status


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


ABSURD: list[Any] = [
    None,
    True,
    -1,
    10**30,
    -(10**30),
    1e308,
    -1e308,
    0.5,
    "",
    "1",
    "\0",
    "\U0010ffff",
    "x" * 100_000,
    [],
    [[]],
    [None],
    {},
    {"": None},
    {"type": "\0"},
    {"type": {"type": {}}},
    [{"type": "text"}],
    [{"role": "user"}],
    [{"type": "function", "function": {"name": "f", "parameters": nested(200)}}],
]


@pytest.mark.parametrize("path", DIALECTS)
async def test_absurd_values_of_every_field(live: Live, client: httpx.AsyncClient, path: str) -> None:
    """Of those that the dialect knows, and of some that it does not."""
    known = set(DIALECTS[path]) | {
        *("temperature", "top_p", "top_k", "min_p", "seed", "n", "best_of", "echo", "suffix", "stop", "user"),
        *("stop_sequences", "stream", "stream_options", "logprobs", "top_logprobs", "logit_bias", "metadata"),
        *("tools", "tool_choice", "parallel_tool_calls", "response_format", "text", "reasoning", "thinking"),
        *("system", "instructions", "previous_response_id", "include", "store", "truncation", "unknown"),
        *("chat_template_kwargs", "frequency_penalty", "presence_penalty", "output_config", "max_tokens"),
        *("cache_control", "service_tier", "max_completion_tokens", "max_output_tokens", "modalities"),
    }
    for name in sorted(known):
        for value in [*ABSURD, nested(200)]:
            body = json.dumps({**DIALECTS[path], name: value})
            reply = await client.post(path, content=body)
            shown = f"{name} = {body[:200]}: {reply.text[:300]}"
            assert reply.status_code in (200, 400, 404), shown
            if reply.status_code != 200:
                error = refusal(reply, path)
                assert error["type"] in ("invalid_request_error", "not_found_error"), shown
                assert len(error["message"]) < 5000, shown


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_absurd_messages(client: httpx.AsyncClient, path: str) -> None:
    roles = ["user", "assistant", "system", "tool", "developer", "nobody", None, [], {}]
    for role in roles:
        for content in ABSURD:
            for last in ([], [{"role": "user", "content": "x"}]):
                message = {"role": role, "content": content}
                reply = await client.post(path, json={**DIALECTS[path], "messages": [message, *last]})
                assert reply.status_code in (200, 400), f"{message} {reply.text[:300]}"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_million_messages(live: Live, client: httpx.AsyncClient, path: str) -> None:
    body = json.dumps({**DIALECTS[path], "messages": []})
    messages = ",".join(['{"role":"user","content":""}'] * 1_000_000)
    reply = await client.post(path, content=body.replace("[]", f"[{messages}]"))
    assert (reply.status_code, refusal(reply, path)["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("path", SAMPLING)
async def test_a_client_that_leaves_mid_stream(live: Live, client: httpx.AsyncClient, path: str) -> None:
    ids = live.renderer.encode("hello " * 1000)
    live.engine.answer = lambda request: Script(ids=ids)
    live.engine.gate = asyncio.Event()
    task = asyncio.create_task(client.post(path, json={**DIALECTS[path], "stream": True}))
    await until(lambda: live.engine.requests)
    assert live.catalog.in_use.count("games/player@3") == 1
    task.cancel()
    await until(lambda: live.engine.cancelled)
    await until(lambda: not live.catalog.in_use.count("games/player@3"))
    live.engine.gate.set()
    async with client.stream("POST", path, json={**DIALECTS[path], "stream": True, **_long(path)}) as reply:
        async for _ in reply.aiter_bytes():
            break
    await until(lambda: not live.catalog.in_use.count("games/player@3"))
    assert (await client.get("/v1/models")).status_code == 200


def _long(path: str) -> dict[str, Any]:
    if "sampling_params" in DIALECTS[path]:
        return {"sampling_params": {"max_tokens": 900}}
    return {"max_output_tokens" if path == "/v1/responses" else "max_tokens": 900}


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "route_not_found"),
        ("GET", "/v1/samples/", 404, "route_not_found"),
        ("POST", "/v1", 404, "route_not_found"),
        ("GET", "/r/", 404, "route_not_found"),
        ("GET", "/r/mine/art/models", 404, "route_not_found"),
        ("GET", "/v1/models/%00", 404, "model_not_found"),
        ("GET", "/v1/models/%ff%fe", 404, "model_not_found"),
        ("GET", "/v1/samples/%00", 404, "sample_not_found"),
        ("GET", "/" + "x" * 30_000, 404, "route_not_found"),
        ("BREW", "/v1/models", 400, "invalid_http"),
        *(
            (method, path, 405, "method_not_allowed")
            for method in ("GET", "DELETE", "PUT")
            for path in DIALECTS
        ),
        ("PATCH", "/v1/models", 405, "method_not_allowed"),
        ("TRACE", "/health", 405, "method_not_allowed"),
    ],
)
async def test_routes_and_methods_that_do_not_exist(
    client: httpx.AsyncClient, method: str, path: str, status: int, code: str
) -> None:
    reply = await client.request(method, path)
    assert (reply.status_code, refusal(reply, path)["code"]) == (status, code)
    if status == 405:
        assert reply.headers["allow"]
