"""Chat completions through the real openai client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from live import KEY, Live
from scripted_engine import Script

import art
from art.errors import OverloadedError, WorkerDiedError, WorkerError
from art.wire.rollouts import ROLLOUT_HEADER
from waiting import DEADLINE_S, until

HELLO = [{"role": "user", "content": "hi"}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "read", "parameters": {"type": "object", "properties": {"id": {}}}},
    }
]


def says(live: Live, text: str, **more: object) -> None:
    """Let the engine answer with the ids of a text."""
    live.engine.answer = lambda request: Script(ids=live.renderer.encode(text), **more)


async def test_a_reply_names_its_sample_and_step(live: Live) -> None:
    reply = await live.client.chat.completions.create(model="player", messages=HELLO, logprobs=True)
    choice = reply.choices[0]
    assert choice.message.content == "hello"
    assert choice.finish_reason == "stop"
    assert choice.model_extra is not None
    assert choice.model_extra["step"] == 3
    (record,) = await live.ledger.samples([choice.model_extra["sample_id"]])
    request = live.engine.requests[0]
    assert request.adapter == "games/player@3"
    assert list(record.prompt_ids) == list(request.prompt_ids)
    assert list(record.completion_ids) == live.engine.emitted[request.request_id]
    assert record.completion_logprobs.tolist() == live.engine.logprobs(len(record.completion_ids))
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert [entry.logprob for entry in choice.logprobs.content] == record.completion_logprobs.tolist()
    assert "".join(entry.token for entry in choice.logprobs.content) == "hello<|im_end|>"
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == len(record.prompt_ids)
    assert reply.usage.completion_tokens == len(record.completion_ids)
    assert choice.model_extra["completion_tokens"] == len(record.completion_ids)
    assert reply.system_fingerprint == "games/player@3"


async def test_every_served_name_answers(live: Live) -> None:
    listed = [model.id for model in (await live.client.models.list()).data]
    assert listed == ["tiny", "player", "player@3"]
    for name, step in (
        ("tiny", None),
        ("player", 3),
        ("player@3", 3),
        ("games/player", 3),
        ("games/player@3", 3),
    ):
        reply = await live.client.chat.completions.create(model=name, messages=HELLO)
        assert reply.choices[0].model_extra["step"] == step
    assert (await live.client.models.retrieve("games/player@3")).id == "player@3"


async def test_logprobs_are_in_a_reply_that_asks_for_them(live: Live) -> None:
    plain = await live.client.chat.completions.create(model="player", messages=HELLO)
    asked = await live.client.chat.completions.create(model="player", messages=HELLO, logprobs=True)
    assert plain.choices[0].logprobs is None and asked.choices[0].logprobs is not None


async def test_sampling_options_reach_the_engine_and_the_ledger(live: Live) -> None:
    reply = await live.client.chat.completions.create(
        model="tiny",
        messages=HELLO,
        n=2,
        seed=7,
        temperature=0.5,
        top_p=0.9,
        max_completion_tokens=3,
        stop=["x", "y"],
        extra_body={"top_k": 5, "min_p": 0.01},
        user="somebody",
        metadata={"why": "test"},
    )
    assert len(reply.choices) == 2
    first, second = sorted((r.sampling for r in live.engine.requests), key=lambda s: s.seed)
    assert (first.seed, second.seed) == (7, 8)
    assert (first.temperature, first.top_p, first.top_k, first.min_p) == (0.5, 0.9, 5, 0.01)
    assert (first.max_tokens, first.stop) == (3, ("x", "y"))
    assert first.stop_token_ids == live.renderer.stop_token_ids
    (record,) = await live.ledger.samples([reply.choices[1].model_extra["sample_id"]])
    assert record.sampling["top_k"] == 5
    assert record.sampling["metadata"] == {"why": "test"}


async def test_max_tokens_cuts_a_reply(live: Live) -> None:
    says(live, "abcdef<|im_end|>")
    reply = await live.client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=3)
    assert (reply.choices[0].finish_reason, reply.choices[0].message.content) == ("length", "abc")


async def test_what_follows_a_stop_string_is_not_shown_but_recorded(live: Live) -> None:
    says(live, "one;two", stop_string=";")
    reply = await live.client.chat.completions.create(model="tiny", messages=HELLO, stop=";")
    assert reply.choices[0].message.content == "one"
    (record,) = await live.ledger.samples([reply.choices[0].model_extra["sample_id"]])
    assert live.renderer.decode(record.completion_ids) == "one;two"


@pytest.mark.parametrize("least, told", [(0, "one"), (5, "one;two")])
async def test_a_stop_string_within_min_tokens_is_text_like_any_other(
    live: Live, least: int, told: str
) -> None:
    text = "one;two;" if least else "one;"
    assert len(live.renderer.encode("one;")) <= 5 < len(live.renderer.encode("one;two;"))
    says(live, text, stop_string=";")
    asking: dict[str, Any] = {
        "model": "tiny",
        "messages": HELLO,
        "stop": ";",
        "extra_body": {"min_tokens": least},
    }
    reply = await live.client.chat.completions.create(**asking)
    assert reply.choices[0].message.content == told
    streamed = [chunk async for chunk in await live.client.chat.completions.create(**asking, stream=True)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == told
    raw = {"model": "tiny", "prompt": "x", "stop": ";", "extra_body": {"min_tokens": least}}
    assert (await live.client.completions.create(**raw)).choices[0].text == told


async def test_tool_calls_keep_their_arguments_as_written(live: Live) -> None:
    written = '{"id": 1.0, "limit":1e3,  "all": false, "name": "é\\u00e9"}'
    says(
        live, f'Let me see.\n<tool_call>\n{{"name": "read", "arguments": {written}}}\n</tool_call><|im_end|>'
    )
    reply = await live.client.chat.completions.create(model="tiny", messages=HELLO, tools=TOOLS)
    choice = reply.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    (call,) = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("read", written)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "read", "arguments": {"id": }}\n</tool_call>',
        '<tool_call>\n{"name": "read", "arguments": [1]}\n</tool_call>',
        '<tool_call>\n{"arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "read"',
    ],
)
async def test_malformed_tool_calls_stay_in_the_content(live: Live, text: str) -> None:
    says(live, f"{text}<|im_end|>")
    reply = await live.client.chat.completions.create(model="tiny", messages=HELLO, tools=TOOLS)
    assert reply.choices[0].message.tool_calls is None
    assert reply.choices[0].message.content == text
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].model_extra["malformed_calls"] == 1
    stream = await live.client.chat.completions.create(model="tiny", messages=HELLO, tools=TOOLS, stream=True)
    told = [chunk.choices[0].model_extra.get("malformed_calls") async for chunk in stream if chunk.choices]
    assert [number for number in told if number is not None] == [1]
    says(live, "plain<|im_end|>")
    reply = await live.client.chat.completions.create(model="tiny", messages=HELLO, tools=TOOLS)
    assert "malformed_calls" not in reply.choices[0].model_extra


async def test_without_tools_nothing_is_read_as_a_call(live: Live) -> None:
    text = '<tool_call>\n{"name": "read", "arguments": {}}\n</tool_call>'
    says(live, f"{text}<|im_end|>")
    reply = await live.client.chat.completions.create(model="tiny", messages=HELLO)
    assert reply.choices[0].message.content == text
    reply = await live.client.chat.completions.create(
        model="tiny", messages=HELLO, tools=TOOLS, tool_choice="none"
    )
    assert reply.choices[0].message.content == text


async def test_thinking_is_told_apart(live: Live) -> None:
    says(live, "<think>\nhm\n</think>\n\nhello<|im_end|>")
    reply = await live.client.chat.completions.create(model="tiny", messages=HELLO)
    message = reply.choices[0].message
    assert (message.content, message.model_extra["reasoning_content"]) == ("hello", "hm")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"frequency_penalty": 2.5}, "frequency_penalty"),
        ({"presence_penalty": "high"}, "presence_penalty"),
        ({"extra_body": {"repetition_penalty": 0}}, "repetition_penalty"),
        ({"extra_body": {"min_tokens": -1}}, "min_tokens"),
        ({"extra_body": {"min_tokens": 5}, "max_tokens": 4}, "min_tokens"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format"),
        (
            {
                "response_format": {"type": "json_object"},
                "extra_body": {"structured_outputs": {"regex": "a"}},
            },
            "structured_outputs.regex",
        ),
        ({"extra_body": {"structured_outputs": {"regex": "a", "choice": ["a"]}}}, "structured_outputs"),
        ({"extra_body": {"guided_choice": []}}, "guided_choice"),
        ({"extra_body": {"guided_json": "x" * 300_000}}, "guided_json"),
        ({"logit_bias": {"7": 101}}, "logit_bias"),
        ({"logit_bias": {"seven": 1}}, "logit_bias"),
        ({"extra_body": {"stop_token_ids": ["a"]}}, "stop_token_ids"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "always", "tools": TOOLS}, "tool_choice"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "write"}}, "tools": TOOLS},
            "tool_choice",
        ),
        ({"extra_body": {"best_of": 2}}, "best_of"),
        ({"reasoning_effort": "utmost"}, "reasoning_effort"),
        ({"extra_body": {"bad_words": ["no"]}}, "bad_words"),
        ({"extra_body": {"prompt_logprobs": 21}}, "prompt_logprobs"),
        ({"extra_body": {"prompt_logprobs": 0}, "stream": True}, "prompt_logprobs"),
        ({"extra_body": {"ignore_eos": True}, "response_format": {"type": "json_object"}}, "ignore_eos"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 100000}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        ({"stop": [""]}, "stop"),
        ({"seed": 1.5}, "seed"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        (
            {"stream": True, "stream_options": {"continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats",
        ),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(live: Live, change: dict, named: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await live.client.chat.completions.create(**{"model": "tiny", "messages": HELLO, **change})
    assert refused.value.param == named
    assert named.rpartition(".")[2] in refused.value.message
    assert not live.engine.requests


async def test_a_trajectory_s_turns_sent_as_messages_are_told_the_function_that_gives_messages(
    live: Live,
) -> None:
    first = await live.client.chat.completions.create(model="tiny", messages=HELLO)
    said = art.Trajectory(messages_and_choices=[*HELLO, first.choices[0]])
    with pytest.raises(
        openai.BadRequestError, match=r"is a Choice .* send `trajectory\.messages\(\)`"
    ) as told:
        await live.client.chat.completions.create(model="tiny", messages=said.messages_and_choices)
    assert told.value.param == f"messages[{len(HELLO)}]"
    await live.client.chat.completions.create(model="tiny", messages=said.messages())


async def test_values_that_ask_for_nothing_are_accepted(live: Live) -> None:
    await live.client.chat.completions.create(
        model="tiny",
        messages=[{"role": "developer", "content": "be brief"}, *HELLO],
        frequency_penalty=0,
        presence_penalty=0.0,
        response_format={"type": "text"},
        parallel_tool_calls=True,
        store=False,
        logprobs=False,
        stop=None,
        tools=[],
        extra_body={
            "skip_special_tokens": True,
            "ignore_eos": False,
            "min_tokens": 0,
            "stop_token_ids": [],
            "guided_choice": None,
        },
    )
    assert len(live.engine.requests) == 1


async def test_an_unknown_model_lists_what_is_served(live: Live) -> None:
    for name in ("playr", "player@99", "other/player", "player@x"):
        with pytest.raises(openai.NotFoundError) as refused:
            await live.client.chat.completions.create(model=name, messages=HELLO)
        assert refused.value.code == "model_not_found"
        assert "'player'" in refused.value.message and "'tiny'" in refused.value.message


@pytest.mark.slow
async def test_a_wrong_key_and_none_are_refused_everywhere_but_health(live: Live) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": KEY}, {"x-api-key": "wrong"}):
        async with httpx.AsyncClient(base_url=live.url, headers=headers, timeout=DEADLINE_S) as client:
            for path in ("/v1/chat/completions", "/v1/models", "/v1/samples/x", "/nothing", "/r/a/v1/models"):
                reply = await client.post(path, json={})
                assert reply.status_code == 401
                assert reply.json()["error"]["code"] == "invalid_api_key"
                assert KEY not in reply.text
            assert (await client.get("/health")).json()["status"] == "ok"


async def test_the_key_may_come_as_anthropic_s_clients_send_it(live: Live) -> None:
    async with httpx.AsyncClient(base_url=live.url, headers={"x-api-key": KEY}, timeout=DEADLINE_S) as client:
        assert (await client.get("/v1/models")).status_code == 200


async def test_a_prompt_longer_than_the_context_names_the_numbers(live: Live) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await live.client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "x" * 5000}]
        )
    assert refused.value.code == "context_length_exceeded"
    assert "4096" in refused.value.message and "50" in refused.value.message


@pytest.mark.slow
async def test_bad_bodies_and_routes_have_openai_s_error_shape(live: Live) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=live.url, headers=headers, timeout=DEADLINE_S) as client:
        for body, status in ((b"{", 400), (b"[]", 400), (b"\xff", 400), (b"x" * (33 * 1024 * 1024), 413)):
            reply = await client.post("/v1/chat/completions", content=body)
            assert reply.status_code == status
            assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
        assert (await client.get("/v1/chat/completions")).status_code == 405
        assert (await client.get("/v1/nothing")).json()["error"]["code"] == "route_not_found"
        assert (await client.get("/v1/samples/smp_none")).json()["error"]["code"] == "sample_not_found"
        bad = await client.post(
            "/v1/chat/completions",
            json={"model": "tiny", "messages": HELLO},
            headers={ROLLOUT_HEADER: "x" * 300},
        )
        assert bad.status_code == 400


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (OverloadedError("full", retry_after=2.0), 429, "2"),
        (WorkerDiedError("engine died"), 503, "1"),
        (WorkerError("step failed"), 500, None),
        (ZeroDivisionError("a defect"), 500, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_engine_failures_are_named(
    live: Live, error: Exception, status: int, retry_after: str | None, stream: bool
) -> None:
    def fail(request: object) -> Script:
        raise error

    live.engine.answer = fail
    with pytest.raises(openai.APIStatusError) as failed:
        await live.client.chat.completions.create(model="tiny", messages=HELLO, stream=stream)
    assert failed.value.status_code == status
    assert failed.value.response.headers.get("retry-after") == retry_after
    if not isinstance(error, ZeroDivisionError):
        assert str(error) in failed.value.message


async def test_an_adapter_that_the_engine_lost_asks_to_try_again(live: Live) -> None:
    live.engine.adapters.clear()
    with pytest.raises(openai.InternalServerError) as failed:
        await live.client.chat.completions.create(model="player", messages=HELLO)
    assert (failed.value.status_code, failed.value.code) == (503, "adapter_not_loaded")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_cancels_its_generation(live: Live, stream: bool) -> None:
    live.engine.gate = asyncio.Event()
    asked = asyncio.create_task(
        live.client.chat.completions.create(model="player", messages=HELLO, n=2, stream=stream)
    )
    await until(lambda: len(live.engine.requests) == 2)
    assert live.catalog.in_use.count("games/player@3") == 1
    asked.cancel()
    await until(lambda: len(live.engine.cancelled) == 2)
    await live.catalog.wait_until_unused("games/player@3", timeout=60)


async def test_a_rollout_can_be_named_by_header_or_address(live: Live) -> None:
    await live.client.chat.completions.create(
        model="tiny", messages=HELLO, extra_headers={ROLLOUT_HEADER: "game-1"}
    )
    by_address = live.client.with_options(base_url=f"{live.url}/r/game-1/v1")
    await by_address.chat.completions.create(model="tiny", messages=HELLO)
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {KEY}"}, timeout=DEADLINE_S) as client:
        rollout = (await client.get(f"{live.url}/v1/rollouts/game-1")).json()
        assert [sample["rollout_id"] for sample in rollout["samples"]] == ["game-1", "game-1"]
        sample_id = rollout["samples"][0]["sample_id"]
        sample = (await client.get(f"{live.url}/v1/samples/{sample_id}")).json()
    assert json.dumps(sample) == json.dumps(rollout["samples"][0])


async def test_a_request_tells_the_chat_format(live: Live) -> None:
    quiet = {"chat_template_kwargs": {"enable_thinking": False}}
    create = live.client.chat.completions.create
    plain = await create(model="player", messages=HELLO)
    told = await create(model="player", messages=HELLO, extra_body=quiet)
    first, second = (list(request.prompt_ids) for request in live.engine.requests)
    assert live.renderer.decode(second) == live.renderer.decode(first) + "<think>\n\n</think>\n\n"
    assert plain.choices[0].message.content == told.choices[0].message.content

    async def shared(reply: openai.types.chat.ChatCompletion, **extra: object) -> int:
        turn = [*HELLO, {"role": "assistant", "content": "hello"}, *HELLO]
        again = await create(model="player", messages=turn, extra_body=extra or None)
        (record,) = await live.ledger.samples([again.choices[0].model_extra["sample_id"]])
        return record.shared

    assert await shared(told, **quiet) == len(second) + len(live.renderer.encode("hello<|im_end|>"))
    assert await shared(plain) == len(first) + len(live.renderer.encode("hello<|im_end|>"))
    with pytest.raises(openai.BadRequestError, match="enable_thinkin'") as refused:
        await create(
            model="player", messages=HELLO, extra_body={"chat_template_kwargs": {"enable_thinkin": 1}}
        )
    assert refused.value.param == "chat_template_kwargs"
    with pytest.raises(openai.BadRequestError, match="must be an object"):
        await create(model="player", messages=HELLO, extra_body={"chat_template_kwargs": "x"})
