"""What an endpoint says, as errors of ours; what it refuses, asked in another way once and for all."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import art
from art.errors import (
    ConfigurationError,
    LlmBusyError,
    LlmError,
    LlmRefusedError,
    LlmTimeoutError,
    LlmTooLongError,
    LlmUnavailableError,
)
from art.rewards.llm import Request, resolve_llm
from art.rewards.llm.endpoint import MOST_BYTES, retry_after
from art_extensions.testing import LlmServer, Mischief
from serving import serving

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
QUESTION = Request(
    messages=({"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}),
    schema=SCHEMA,
    max_tokens=50,
    temperature=0.0,
)
Reply = Callable[[dict[str, Any]], Response]


@asynccontextmanager
async def answering(reply: Reply) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """An endpoint that answers exactly what a test wants of it."""
    bodies: list[dict[str, Any]] = []

    async def complete(request: HttpRequest) -> Response:
        bodies.append(await request.json())
        return reply(bodies[-1])

    app = Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])
    async with serving(app, timeout_graceful_shutdown=1) as url:
        yield f"{url}/v1", bodies


def refusal(status: int, message: str, code: str = "x", **headers: str) -> Response:
    body = {"error": {"message": message, "code": code, "type": "t"}}
    return JSONResponse(
        body, status, headers={name.replace("_", "-"): text for name, text in headers.items()}
    )


def completion(text: str | None = "{}", **message: Any) -> Response:
    said = {"role": "assistant", "content": text, **message}
    choice = {"index": 0, "finish_reason": "stop", "message": said}
    usage = {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010}
    told = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return JSONResponse(told | {"usage": usage})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (refusal(429, "slow down", retry_after="7"), LlmBusyError),
        (refusal(503, "overloaded"), LlmBusyError),
        (refusal(500, "oh"), LlmUnavailableError),
        (refusal(404, "no such model"), ConfigurationError),
        (refusal(403, "no"), ConfigurationError),
        (refusal(429, "pay", "insufficient_quota"), ConfigurationError),
        (refusal(400, "maximum context length is 8192 tokens"), LlmTooLongError),
        (refusal(400, "no", "content_filter"), LlmRefusedError),
        (completion(None, refusal="I will not"), LlmRefusedError),
        (JSONResponse({"id": "1", "choices": []}), LlmUnavailableError),
        (Response("<html>", media_type="application/json"), LlmUnavailableError),
        (Response("<html>", media_type="text/html"), LlmUnavailableError),
    ],
)
async def test_what_an_endpoint_says_has_a_type(reply: Response, kind: type[Exception]) -> None:
    async with answering(lambda body: reply) as (url, bodies):
        with pytest.raises(kind) as caught:
            await resolve_llm("judge", base_url=url).complete(QUESTION)
    assert type(caught.value) is kind and "judge" in str(caught.value)
    assert len(bodies) == 1, "the SDK must not ask again by itself"
    if isinstance(caught.value, LlmBusyError) and "slow down" in str(caught.value):
        assert caught.value.retry_after == 7


def spoken(content: bytes, **headers: str) -> Response:
    return Response(
        content,
        media_type="application/json",
        headers={name.replace("_", "-"): text for name, text in headers.items()},
    )


CHAT = (
    b'{"id":"1","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":%s}}]}'
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (CHAT % b'"\xff\xfe"', "UnicodeDecodeError"),
        (CHAT % (b"[" * 1_900), "RecursionError"),
        (CHAT % (b"[" * 200_000), "more than 2000 values"),
        (CHAT % b'{"a": 1}', "TypeError"),
        (b'{"choices": [null]}', "AttributeError"),
        (b'{"choices": {"a": 1}}', "KeyError"),
        (b"[1, 2]", "no chat completion|without a choice"),
        ((CHAT % b'"x"')[:-1] + b', "usage": {"prompt_tokens": "many"}}', "ValueError"),
        (CHAT % (b"9" * 10_000), "ValueError"),
    ],
)
async def test_a_reply_that_is_no_chat_completion_is_unavailable(content: bytes, said: str) -> None:
    async with answering(lambda body: spoken(content)) as (url, _):
        with pytest.raises(LlmUnavailableError, match=said):
            await resolve_llm("judge", base_url=url).complete(QUESTION)


async def test_a_reply_without_end_is_read_up_to_a_limit() -> None:
    sent: list[int] = []

    def reply(body: dict[str, Any]) -> Response:
        def parts() -> Any:
            for _ in range(64):
                sent.append(MOST_BYTES // 16)
                yield b" " * (MOST_BYTES // 16)

        return StreamingResponse(parts(), media_type="application/json")

    async with answering(reply) as (url, _):
        with pytest.raises(LlmUnavailableError, match=f"longer than {MOST_BYTES} bytes"):
            await resolve_llm("judge", base_url=url).complete(QUESTION)
    assert sum(sent) < 4 * MOST_BYTES, "it goes on to read what it will not use"


@pytest.mark.slow
async def test_a_packed_reply_counts_as_what_it_unpacks_to() -> None:
    packed = gzip.compress(b" " * (MOST_BYTES + 1))
    assert len(packed) < MOST_BYTES // 100
    async with answering(lambda body: spoken(packed, content_encoding="gzip")) as (url, _):
        with pytest.raises(LlmUnavailableError, match="longer"):
            await resolve_llm("judge", base_url=url).complete(QUESTION)
    whole = gzip.compress(bytes(completion('{"a": 1}').body))
    async with answering(lambda body: spoken(whole, content_encoding="gzip")) as (url, _):
        reply = await resolve_llm("judge", base_url=url).complete(QUESTION)
    assert (reply.text, reply.usage.prompt_tokens) == ('{"a": 1}', 1000)


async def test_no_redirect_is_followed() -> None:
    async with answering(lambda body: completion()) as (elsewhere, bodies):
        away = Response(status_code=307, headers={"location": f"{elsewhere}/chat/completions"})
        async with answering(lambda body: away) as (url, _):
            with pytest.raises(LlmError, match="redirects to 'http"):
                await resolve_llm("judge", base_url=url).complete(QUESTION)
        assert not bodies


async def test_nobody_there_and_a_cut_connection_are_unavailable() -> None:
    with pytest.raises(LlmUnavailableError):
        await resolve_llm("judge", base_url="http://127.0.0.1:9/v1").complete(QUESTION)
    async with LlmServer(lambda body: "x" * 500, mischief=Mischief(cut=1)) as server:
        with pytest.raises(LlmUnavailableError):
            await resolve_llm("judge", base_url=server.base_url, api_key=server.key).complete(QUESTION)


async def test_an_attempt_ends_at_its_own_timeout() -> None:
    async with LlmServer(lambda body: "x", mischief=Mischief(hang=1)) as server:
        llm = resolve_llm("judge", base_url=server.base_url, api_key=server.key, params={"timeout": 0.2})
        with pytest.raises(LlmTimeoutError):
            await llm.complete(QUESTION)


def test_retry_after_is_read_in_all_its_forms() -> None:
    assert retry_after({"retry-after": "2.5"}) == 2.5
    assert retry_after({"retry-after-ms": "250", "retry-after": "9"}) == 0.25
    assert retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0.0
    assert retry_after({"retry-after": "soon"}) is None and retry_after({}) is None


@pytest.mark.parametrize(
    ("formats", "kinds"),
    [
        (("json_schema", "json_object", "text"), ["json_schema"]),
        (("json_object", "text"), ["json_schema", "json_object", "json_object"]),
        (("text",), ["json_schema", "json_object", None, None]),
    ],
)
async def test_a_form_that_is_refused_is_not_tried_again(
    formats: tuple[str, ...], kinds: list[str | None]
) -> None:
    asked: list[str | None] = []
    async with LlmServer(lambda body: {"a": 1}, formats=formats) as server:
        llm = resolve_llm("judge", base_url=server.base_url, api_key=server.key)
        for _ in range(2 if len(kinds) > 1 else 1):
            assert json.loads((await llm.complete(QUESTION)).text) == {"a": 1}
        asked = [(body.get("response_format") or {}).get("type") for body in server.requests]
    assert asked == kinds
    system = server.requests[-1]["messages"][0]["content"]
    assert system.startswith("Be brief.") and ("JSON schema" in system) is (len(kinds) > 1)


async def test_a_closed_schema_is_asked_for_strictly_and_an_open_one_is_not() -> None:
    async with LlmServer(lambda body: {"a": 1}) as server:
        llm = resolve_llm("judge", base_url=server.base_url, api_key=server.key)
        await llm.complete(QUESTION)
        await llm.complete(
            Request(messages=QUESTION.messages, schema={"type": "object", "properties": SCHEMA["properties"]})
        )
    assert [body["response_format"]["json_schema"]["strict"] for body in server.requests] == [True, False]


async def test_a_limit_and_a_temperature_that_are_refused_are_said_in_another_way() -> None:
    def reply(body: dict[str, Any]) -> Response:
        if "max_tokens" in body:
            return refusal(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
        if "temperature" in body:
            return refusal(400, "Unsupported value: 'temperature' does not support 0 with this model.")
        return completion()

    async with answering(reply) as (url, bodies):
        llm = resolve_llm("judge", base_url=url)
        await llm.complete(QUESTION)
        await llm.complete(QUESTION)
        assert len(bodies) == 4 and bodies[-1]["max_completion_tokens"] == 50
        with pytest.raises(ConfigurationError, match="temperature"):  # what the user chose is not dropped
            chosen = resolve_llm("judge", base_url=url, params={"temperature": 0.0})
            await chosen.complete(Request(messages=QUESTION.messages))


@pytest.mark.slow
async def test_prices_come_from_the_reply_the_options_or_the_table() -> None:
    async with answering(lambda body: completion()) as (url, _):
        known = await resolve_llm("openai/gpt-4.1", base_url=url).complete(QUESTION)
        assert known.usage.usd == pytest.approx((1000 * 2 + 10 * 8) / 1e6)
        per_token = {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}
        own = await resolve_llm("judge", base_url=url, params=per_token).complete(QUESTION)
        assert own.usage.usd == pytest.approx(1020e-6)
        assert (await resolve_llm("judge", base_url=url).complete(QUESTION)).usage.usd is None
        assert (await resolve_llm("hosted_vllm/m", base_url=url).complete(QUESTION)).usage.usd == 0
    stated = completion().body
    assert isinstance(stated, bytes)
    body = json.loads(stated)
    body["usage"]["cost"] = 0.125
    async with answering(lambda _: JSONResponse(body)) as (url, _):
        assert (await resolve_llm("judge", base_url=url).complete(QUESTION)).usage.usd == 0.125


async def test_a_judge_asked_inside_a_rollout_is_no_part_of_it() -> None:
    async def attempt(server: LlmServer) -> None:
        agent = art.Model(
            name="a", project="p", inference_base_url=server.base_url, inference_api_key=server.key
        )
        await agent.openai_client().chat.completions.create(
            model="agent", messages=[{"role": "user", "content": "play"}]
        )
        await resolve_llm("judge", base_url=server.base_url, api_key=server.key).complete(QUESTION)

    async with LlmServer(lambda body: {"a": 1}) as server:
        trajectory = await art.capture_auto_trajectory(attempt(server))
    assert [message["content"] for message in trajectory.messages()] == ["play", '{"a": 1}']
    assert not trajectory.additional_histories
    assert len(server.requests) == 2


async def test_a_key_that_an_endpoint_repeats_is_in_no_message_and_in_no_repr() -> None:
    key = "sk-0123456789"
    async with answering(lambda body: refusal(400, f"what is 'Bearer {key}'?")) as (url, _):
        llm = resolve_llm("judge", base_url=url, api_key=key, params={"extra_headers": {"x-key": key}})
        with pytest.raises(ConfigurationError, match=r"Bearer \[the key\]") as caught:
            await llm.complete(QUESTION)
    assert key not in str(caught.value) and key not in repr(llm.params)


def test_what_the_cache_knows_a_model_by() -> None:
    def known(url: str, **params: Any) -> str:
        return resolve_llm("judge", base_url=url, api_key="k", params=params).identity  # type: ignore[attr-defined, no-any-return]

    assert known("http://localhost:8000/v1") == known("http://127.0.0.1:8000/v1")
    others = ["http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1", "http://127.0.0.1:1/b"]
    others += ["http://box:1/v1", "http://box:2/v1", "http://box:1/deployments/b"]
    assert len({known(url) for url in others}) == 6
    assert len({known(url, cache_name="mine") for url in others}) == 1
    assert known(others[0], cache_name="mine") != known(others[0], cache_name="yours")
