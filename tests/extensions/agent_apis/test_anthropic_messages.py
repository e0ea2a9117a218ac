"""`/v1/messages` over real HTTP, in the bytes that Anthropic's SDK sends and reads."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from live import KEY, Live
from scripted_engine import Script

from art.engine.protocol import GenerateRequest
from art.errors import OverloadedError, WorkerDiedError

HI = {"role": "user", "content": "hi"}
ASKED: dict[str, Any] = {"model": "player", "max_tokens": 100, "messages": [HI]}
TOOLS = [{"name": "read", "input_schema": {"type": "object", "properties": {"x": {"type": "number"}}}}]
CALL = 'I look.\n<tool_call>\n{"name": "read", "arguments": {"x": 1e3}}\n</tool_call>'


@pytest.fixture
async def client(live: Live) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01", "anthropic-beta": "some-2025-01-01"}
    async with httpx.AsyncClient(base_url=live.url, headers=headers, timeout=240) as client:
        yield client


async def ask(client: httpx.AsyncClient, path: str = "/v1/messages", **changes: Any) -> Any:
    reply = await client.post(path, json={**ASKED, **changes})
    assert reply.status_code == 200, reply.text
    return reply.json()


async def events(client: httpx.AsyncClient, **changes: Any) -> list[dict[str, Any]]:
    reply = await client.post("/v1/messages", json={**ASKED, "stream": True, **changes})
    assert reply.headers["content-type"].startswith("text/event-stream")
    read = []
    for block in reply.text.strip().split("\n\n"):
        name, data = block.split("\n")
        read.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {read[-1]['type']}"
    return read


def put_together(told: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client has at the end, by the rules of the SDK."""
    message = told[0]["message"]
    written: dict[int, str] = {}
    for event in told:
        if event["type"] == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
        elif event["type"] == "content_block_delta":
            block, delta = message["content"][event["index"]], event["delta"]
            if delta["type"] == "input_json_delta":
                written[event["index"]] = written.get(event["index"], "") + delta["partial_json"]
                block["input"] = json.loads(written[event["index"]])
            else:
                kind = delta["type"].removesuffix("_delta")
                block[kind] += delta[kind]
        elif event["type"] == "message_delta":
            message.update(event["delta"])
            message["usage"].update(event["usage"])
    return message


def say(live: Live, text: str, **script: Any) -> None:
    live.engine.answer = lambda request: Script(ids=live.renderer.encode(text), **script)


async def test_a_reply(live: Live, client: httpx.AsyncClient) -> None:
    message = await ask(client, system="be kind", temperature=0.5, top_k=3, metadata={"user_id": "u"})
    (record,) = await live.ledger.samples([message["sample_id"]])
    assert message == {
        "id": f"msg_{record.sample_id}",
        "type": "message",
        "role": "assistant",
        "model": "player",
        "content": [{"type": "text", "text": "hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": len(record.prompt_ids), "output_tokens": 2},
        "sample_id": record.sample_id,
        "step": 3,
    }
    assert record.sampling["metadata"] == {"user_id": "u"}
    sampling = live.engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.max_tokens) == (0.5, 3, 100)
    prompt = [{"role": "system", "content": "be kind"}, HI]
    assert list(record.prompt_ids) == live.renderer.render(prompt, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "kinds", "reason"),
    [
        ("hello", ["text"], "end_turn"),
        ("<think>\nlet me see\n</think>\n\nhello", ["thinking", "text"], "end_turn"),
        (CALL, ["text", "tool_use"], "tool_use"),
        (CALL.partition("\n")[2] * 2, ["tool_use", "tool_use"], "tool_use"),
        ("<think>\nhm\n</think>\n" + CALL, ["thinking", "text", "tool_use"], "tool_use"),
        ("", [], "end_turn"),
    ],
)
@pytest.mark.parametrize("chunk", [1, 3])
async def test_a_stream_adds_up_to_the_whole_reply(
    live: Live, client: httpx.AsyncClient, text: str, kinds: list[str], reason: str, chunk: int
) -> None:
    say(live, text + "<|im_end|>", chunk=chunk)
    whole = await ask(client, tools=TOOLS)
    told = await events(client, tools=TOOLS)
    streamed = put_together(told)
    assert [block["type"] for block in whole["content"]] == kinds
    assert whole["stop_reason"] == reason
    for message in (whole, streamed):
        (record,) = await live.ledger.samples([message.pop("sample_id")])
        assert list(record.completion_ids) == live.renderer.encode(text + "<|im_end|>")
        assert message.pop("id") == f"msg_{record.sample_id}"
        for block in message["content"]:
            assert block.get("id", "call_").startswith("call_")
            block.pop("id", None)
    assert streamed == whole
    assert [event["type"] for event in told[-2:]] == ["message_delta", "message_stop"]
    opened = [event["index"] for event in told if event["type"] == "content_block_start"]
    closed = [event["index"] for event in told if event["type"] == "content_block_stop"]
    assert opened == closed == list(range(len(kinds)))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_with_tools_extends_the_sampled_ids(
    live: Live, client: httpx.AsyncClient, stream: bool
) -> None:
    say(live, "<think>\nhm\n</think>\n" + CALL + "<|im_end|>")
    headers = {"x-art-rollout": "r"}
    client.headers.update(headers)
    if stream:
        first = put_together(await events(client, tools=TOOLS))
    else:
        first = await ask(client, tools=TOOLS)
    called = first["content"][-1]
    assert called["input"] == {"x": 1000.0}
    result = {"type": "tool_result", "tool_use_id": called["id"], "content": "42"}
    turn = [{"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
    say(live, "hello<|im_end|>")
    await ask(client, tools=TOOLS, messages=[HI, *turn])
    one, two = live.engine.requests
    before = [*one.prompt_ids, *live.engine.emitted[one.request_id]]
    assert list(two.prompt_ids)[: len(before)] == before
    assert not live.stitcher.forks
    rollout = (await client.get("/v1/rollouts/r")).json()
    assert len(rollout["samples"]) == 2 and not rollout["forks"]


async def test_a_rollout_may_be_named_by_the_address(live: Live, client: httpx.AsyncClient) -> None:
    message = await ask(client, "/r/mine/v1/messages")
    (record,) = await live.ledger.samples([message["sample_id"]])
    assert record.rollout_id == "mine"


async def test_reasons_of_the_end(live: Live, client: httpx.AsyncClient) -> None:
    say(live, "one END", stop_string="END")
    message = await ask(client, stop_sequences=["END"])
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")
    assert message["content"][0]["text"].rstrip() == "one"
    assert put_together(await events(client, stop_sequences=["END"]))["stop_sequence"] == "END"
    say(live, "hello hello hello")
    assert (await ask(client, max_tokens=2))["stop_reason"] == "max_tokens"
    say(live, "hello " * 4096)
    message = await ask(client, max_tokens=100_000)
    assert message["stop_reason"] == "model_context_window_exceeded"


async def test_tokens_are_counted_as_they_will_be_sent(live: Live, client: httpx.AsyncClient) -> None:
    asked = {"model": "player", "messages": [HI], "tools": TOOLS, "system": "be kind"}
    reply = await client.post("/v1/messages/count_tokens", json=asked)
    message = await ask(client, **asked)
    assert reply.json() == {"input_tokens": message["usage"]["input_tokens"]}
    assert len(live.engine.requests) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "status", "kind"),
    [
        ({"model": "nobody"}, 404, "not_found_error"),
        ({"max_tokens": None}, 400, "invalid_request_error"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, 400, "invalid_request_error"),
        ({"stop_sequences": [3]}, 400, "invalid_request_error"),
        ({"tools": [{"name": "bash"}]}, 400, "invalid_request_error"),
    ],
)
async def test_errors_have_anthropic_s_shape(
    client: httpx.AsyncClient, changes: dict[str, Any], status: int, kind: str
) -> None:
    for path in ("/v1/messages", "/r/mine/v1/messages"):
        reply = await client.post(path, json={**ASKED, **changes})
        body = reply.json()
        assert (reply.status_code, body["type"], body["error"]["type"]) == (status, "error", kind)
        assert body["error"]["message"] and body["error"]["details"]["error_code"]


async def test_failures_around_the_body_have_anthropic_s_shape(live: Live, client: httpx.AsyncClient) -> None:
    wrong = await client.post("/v1/messages", json=ASKED, headers={"x-api-key": "wrong"})
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (401, "authentication_error")
    garbled = await client.post("/v1/messages", content=b"{")
    assert (garbled.status_code, garbled.json()["error"]["type"]) == (400, "invalid_request_error")
    method = await client.get("/v1/messages")
    assert (method.status_code, method.json()["type"]) == (405, "error")

    def full(request: GenerateRequest) -> Script:
        raise OverloadedError("the queue is full", retry_after=2)

    live.engine.answer = full
    busy = await client.post("/v1/messages", json=ASKED)
    assert (busy.status_code, busy.json()["error"]["type"]) == (429, "rate_limit_error")
    assert busy.headers["retry-after"] == "2"


async def test_a_failure_after_the_first_byte_is_an_event(live: Live, client: httpx.AsyncClient) -> None:
    original = live.engine.generate

    async def dies(request: GenerateRequest) -> Any:
        async for delta in original(request):
            yield delta
            raise WorkerDiedError("engine died")

    live.engine.generate = dies  # type: ignore[method-assign]
    told = await events(client)
    assert told[-1]["type"] == "error"
    assert told[-1]["error"]["type"] == "overloaded_error"
    assert await live.ledger.is_empty()
