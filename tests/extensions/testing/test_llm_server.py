"""The test endpoint over real HTTP, asked by OpenAI's own client."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import openai
import pytest

from art.errors import ConfigurationError
from art_extensions.testing import LlmServer, Mischief, ToolCalls

QUESTION: list[Any] = [{"role": "user", "content": "hello"}]


def client(server: LlmServer, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=server.base_url, api_key=server.key, max_retries=0, **({"timeout": 60} | options)
    )


async def ask(server: LlmServer, **options: Any) -> Any:
    async with client(server) as asking:
        return await asking.chat.completions.create(model="any", messages=QUESTION, **options)


async def test_it_answers_in_openais_shape_and_remembers_what_it_was_asked() -> None:
    async with LlmServer(lambda body: {"said": body["messages"][0]["content"]}) as server:
        reply = await ask(server, temperature=0.5, extra_headers={"x-who": "me"})
    assert json.loads(reply.choices[0].message.content) == {"said": "hello"}
    assert reply.choices[0].finish_reason == "stop" and reply.usage.total_tokens > 0
    assert [body["temperature"] for body in server.requests] == [0.5]
    assert server.served[0].headers["x-who"] == "me" and "authorization" not in server.served[0].headers


async def test_a_reply_can_call_tools() -> None:
    calls = [("add", '{"a": 1}'), ("add", '{"a": 2}')]
    async with LlmServer(lambda body: ToolCalls(calls)) as server:
        reply = await ask(server)
    choice = reply.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert [(one.function.name, one.function.arguments) for one in choice.message.tool_calls] == calls
    assert len({one.id for one in choice.message.tool_calls}) == 2


def test_it_serves_programs_without_an_event_loop() -> None:
    with LlmServer(lambda body: "plain") as server:
        with openai.OpenAI(base_url=server.base_url, api_key=server.key) as asking:
            reply = asking.chat.completions.create(model="any", messages=QUESTION)
            assert [model.id for model in asking.models.list()] == ["truth"]
    assert reply.choices[0].message.content == "plain"


@pytest.mark.slow
def test_a_server_that_nobody_stops_keeps_no_program_from_ending() -> None:
    program = "from art_extensions.testing import LlmServer; LlmServer(lambda body: '').start()"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)


def test_it_is_started_once_and_may_be_started_again_after_it_stopped() -> None:
    server = LlmServer(lambda body: "")
    for _ in range(2):
        with server, pytest.raises(ConfigurationError, match="running already"):
            server.start()


async def test_a_wrong_key_is_turned_away() -> None:
    async with LlmServer(lambda body: "", key="right") as server:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="wrong", max_retries=0) as asking:
            with pytest.raises(openai.AuthenticationError):
                await asking.chat.completions.create(model="any", messages=QUESTION)
    assert server.requests == []


async def test_what_is_not_understood_is_refused_with_its_reason() -> None:
    def answer(body: Any) -> str:
        raise ValueError("no such question")

    async with LlmServer(answer, formats=("text",)) as server:
        with pytest.raises(openai.BadRequestError, match="json_schema"):
            schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}
            await ask(server, response_format=schema)
        with pytest.raises(openai.BadRequestError, match="stream"):
            await ask(server, stream=True)
        with pytest.raises(openai.BadRequestError, match="no such question"):
            await ask(server)
    with pytest.raises(ConfigurationError, match="xml"):
        LlmServer(answer, formats=("xml",))


async def test_async_answers_are_awaited() -> None:
    async def answer(body: Any) -> str:
        return "later"

    async with LlmServer(answer) as server:
        assert (await ask(server)).choices[0].message.content == "later"


async def test_more_than_its_capacity_is_turned_away_with_a_time() -> None:
    async with LlmServer(lambda body: "", capacity=0, mischief=Mischief(retry_after=0.25)) as server:
        with pytest.raises(openai.RateLimitError) as caught:
            await ask(server)
    assert caught.value.response.headers["retry-after"] == "0.25"


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("hang", openai.APITimeoutError),
        ("cut", openai.APIConnectionError),
        ("busy", openai.RateLimitError),
        ("fault", openai.InternalServerError),
    ],
)
async def test_trouble_on_the_wire_reaches_the_client(kind: str, error: type[Exception]) -> None:
    trouble: dict[str, Any] = {kind: 1.0}
    async with LlmServer(lambda body: "x" * 1000, mischief=Mischief(**trouble)) as server:
        async with client(server, timeout=0.2 if kind == "hang" else 60) as asking:
            with pytest.raises(error):
                await asking.chat.completions.create(model="any", messages=QUESTION)


async def test_trouble_in_the_reply() -> None:
    async with LlmServer(lambda body: {"value": 1}, mischief=Mischief(truncated=1.0)) as server:
        choice = (await ask(server)).choices[0]
        assert choice.finish_reason == "length" and choice.message.content == '{"valu'
    async with LlmServer(lambda body: {"value": 1}, mischief=Mischief(refusal=1.0)) as server:
        message = (await ask(server)).choices[0].message
        assert message.content is None and message.refusal
    async with LlmServer(lambda body: {"value": 1}, mischief=Mischief(prose=1.0)) as server:
        assert '```json\n{"value": 1}\n```' in (await ask(server)).choices[0].message.content
    async with LlmServer(lambda body: {"value": 1}, mischief=Mischief(slow=1.0, slow_seconds=0.01)) as server:
        assert (await ask(server)).choices[0].message.content == '{"value": 1}'
    assert [one.trouble for one in server.served] == ["slow"]
