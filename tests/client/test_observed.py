"""Observers hear every chat completion once, whichever way it came; defaults reach every chat request."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
from openai.types.chat import ChatCompletion
from wire_double import KEY, Double

from art.client.http.openai_client import ObservedOpenAI, openai_client, plain_client

pytestmark = pytest.mark.slow

ASK = [{"role": "user", "content": "x é\U0001f600"}]
Heard = list[tuple[dict[str, Any], ChatCompletion]]


@pytest.fixture(params=["short", "ordinary", "plain", "copy", "copy of plain"])
def client(request: pytest.FixtureRequest, server: str) -> ObservedOpenAI:
    ours, plain = (make(base_url=f"{server}/v1", api_key=KEY) for make in (openai_client, plain_client))
    if request.param == "ordinary":
        ours.lane = None
    if request.param.startswith("copy"):
        return (ours if request.param == "copy" else plain).with_options(timeout=60)
    return plain if request.param == "plain" else ours


@pytest.fixture
def heard(client: ObservedOpenAI) -> Heard:
    heard: Heard = []
    client.observers.append(lambda request, completion: heard.append((request, completion)))
    return heard


async def test_whole_replies(client, heard):
    reply = await client.chat.completions.create(model="m", messages=iter(ASK), temperature=0.5)
    ((request, completion),) = heard
    assert completion is reply
    assert request == {"model": "m", "messages": ASK, "temperature": 0.5}


async def test_streams_are_heard_at_their_end(client, heard, double: Double):
    stream = await client.chat.completions.create(model="m", messages=ASK, stream=True)
    seen = ""
    async for chunk in stream:
        assert seen or not heard
        seen += (chunk.choices[0].delta.content or "") if chunk.choices else ""
    ((request, completion),) = heard
    (choice,) = completion.choices
    assert choice.message.content == seen == "reply 1 é\U0001f600"
    assert (choice.finish_reason, choice.model_extra) == ("stop", {"sample_id": "s1", "step": 0})
    assert completion.usage.completion_tokens == 4
    assert request["stream"] is True and len(double.bodies) == 1


async def test_a_stream_closed_early_counts_with_what_was_read(client, heard):
    stream = await client.chat.completions.create(model="m", messages=ASK, stream=True)
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    assert not heard
    await stream.close()
    await stream.close()
    ((_, completion),) = heard
    assert completion.choices[0].message.content.startswith("reply ")
    assert completion.choices[0].finish_reason is None


async def test_parse_and_stream_helpers(client, heard):
    class Answer(pydantic.BaseModel):
        text: str

    with pytest.raises(pydantic.ValidationError):  # what openai makes of it stays openai's affair
        await client.chat.completions.parse(model="m", messages=ASK, response_format=Answer)
    reply = await client.chat.completions.parse(model="m", messages=ASK)
    async with client.chat.completions.stream(model="m", messages=ASK) as stream:
        async for _ in stream:
            pass
    async with client.chat.completions.stream(model="m", messages=ASK) as stream:
        await anext(stream)
    assert [completion.choices[0].model_extra["sample_id"] for _, completion in heard] == ["s2", "s3", "s4"]
    assert heard[0][1] is reply


async def test_raw_responses(client, heard):
    raw = await client.chat.completions.with_raw_response.create(model="m", messages=ASK)
    assert (
        heard[0][1].choices[0].message.content
        == raw.parse().choices[0].message.content
        == "reply 1 é\U0001f600"
    )
    create = client.chat.completions.with_streaming_response.create
    async with create(model="m", messages=ASK) as streaming:
        assert len(heard) == 1
        await streaming.read()
    assert heard[1][1].choices[0].message.content.startswith("reply 2")


async def test_defaults_are_merged_and_the_caller_wins(client, heard, double: Double):
    client.request_defaults["chat_template_kwargs"] = {"enable_thinking": False, "own": 1}
    client.request_defaults["seed"] = 3
    await client.chat.completions.create(model="m", messages=ASK)
    await client.with_options(max_retries=1).chat.completions.create(
        model="m", messages=ASK, extra_body={"chat_template_kwargs": {"own": 2, "mine": 3}}
    )
    assert [(body["chat_template_kwargs"], body["seed"]) for body in double.bodies] == [
        ({"enable_thinking": False, "own": 1}, 3),
        ({"enable_thinking": False, "own": 2, "mine": 3}, 3),
    ]
    assert len(heard) == 2


async def test_an_observer_s_error_reaches_the_caller(client):
    def refuse(request: dict[str, Any], completion: ChatCompletion) -> None:
        raise ValueError("too expensive")

    client.observers.append(refuse)
    with pytest.raises(ValueError, match="too expensive"):
        await client.chat.completions.create(model="m", messages=ASK)
