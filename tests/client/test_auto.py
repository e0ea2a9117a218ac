"""Whichever client a rollout uses, its conversations become a trajectory; nothing outside is touched."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import httpx2
import pytest
from openai.types.chat.chat_completion import Choice
from scripted import Endpoint

from art.client.capture import auto_trajectory, capture_auto_trajectory
from art.errors import NoTrajectoryError
from art.rollout_tasks import current_rollout
from art.trajectories import Trajectory
from art.types import completion_call

ASK = [{"role": "user", "content": "hello"}]
Ask = Callable[..., Awaitable[Any]]
SENDS = [httpx.Client.send, httpx.AsyncClient.send, httpx2.Client.send, httpx2.AsyncClient.send]


def sends() -> list[Any]:
    return [
        vars(kind)["send"] for kind in (httpx.Client, httpx.AsyncClient, httpx2.Client, httpx2.AsyncClient)
    ]


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    yield
    assert sends() == SENDS


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture(params=["ours", "openai", "openai in a thread", "httpx", "httpx2", "raw"])
def ask(request: pytest.FixtureRequest, endpoint: Endpoint) -> Ask:
    """Ask and get the content of the first choice, over another client each."""

    async def over_openai(**options: Any) -> Any:
        client = endpoint.ours() if request.param == "ours" else endpoint.openai()
        reply = await client.chat.completions.create(model="m", **options)
        if not options.get("stream"):
            return reply.choices[0].message.content
        return "".join([chunk.choices[0].delta.content or "" async for chunk in reply])

    async def raw(**options: Any) -> Any:
        raw = await endpoint.openai().chat.completions.with_raw_response.create(model="m", **options)
        if not options.get("stream"):
            return raw.parse().choices[0].message.content
        return "".join([chunk.choices[0].delta.content or "" async for chunk in raw.parse()])

    def blocking(**options: Any) -> Any:
        reply = endpoint.sync_openai().chat.completions.create(model="m", **options)
        if not options.get("stream"):
            return reply.choices[0].message.content
        return "".join([chunk.choices[0].delta.content or "" for chunk in reply])

    async def over_http(**options: Any) -> Any:
        async with endpoint.http(httpx if request.param == "httpx" else httpx2) as http:
            url, body = "http://x/v1/chat/completions", {"model": "m", **options}
            if not options.get("stream"):
                return (await http.post(url, json=body)).json()["choices"][0]["message"]["content"]
            async with http.stream("POST", url, json=body) as response:
                lines = [line async for line in response.aiter_lines() if line.startswith("data: {")]
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
        return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)

    if request.param == "openai in a thread":
        return lambda **options: asyncio.to_thread(blocking, **options)
    return {"httpx": over_http, "httpx2": over_http, "raw": raw}.get(request.param, over_openai)


def contents(items: list[Any]) -> list[tuple[str, str]]:
    """(what it is, what it says)"""
    return [
        ("choice", item.message.content) if isinstance(item, Choice) else (item["role"], item["content"])
        for item in items
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_two_turns_are_one_conversation(ask: Ask, stream: bool):
    async def rollout() -> str:
        said = await ask(messages=ASK, stream=stream)
        messages = [*ASK, {"role": "assistant", "content": said}, {"role": "user", "content": "and now?"}]
        await ask(messages=messages, stream=stream)
        auto_trajectory(required=True).reward = 0.5
        auto_trajectory().metrics["turns"] = 2
        return "dropped"

    trajectory = await capture_auto_trajectory(rollout())
    assert contents(trajectory.messages_and_choices) == [
        ("user", "hello"),
        ("choice", "reply 0"),
        ("user", "and now?"),
        ("choice", "reply 1"),
    ]
    choices = [item for item in trajectory.messages_and_choices if isinstance(item, Choice)]
    assert [choice.model_extra["sample_id"] for choice in choices] == ["s0", "s1"]
    assert [choice.finish_reason for choice in choices] == ["stop", "stop"]
    calls = [completion_call(choice) for choice in choices]
    moments = [call[name] for call in calls for name in ("started_at", "ended_at")]
    assert moments == sorted(moments) and all("started_at" not in choice.model_extra for choice in choices)
    assert trajectory.additional_histories == [] and trajectory.reward == 0.5
    assert trajectory.metrics["turns"] == 2 and trajectory.metrics["duration"] >= 0


@pytest.mark.parametrize("stream", [False, True])
async def test_every_choice_becomes_a_history(ask: Ask, stream: bool):
    async def rollout() -> None:
        await ask(messages=ASK, n=3, stream=stream)
        branch = [*ASK, {"role": "assistant", "content": "reply 2"}, {"role": "user", "content": "more"}]
        await ask(messages=branch, stream=stream)

    trajectory = await capture_auto_trajectory(rollout())
    assert contents(trajectory.messages_and_choices) == [("user", "hello"), ("choice", "reply 0")]
    assert "ended_at" in completion_call(trajectory.messages_and_choices[1])
    (_, other) = trajectory.additional_histories[0].messages_and_choices
    assert "ended_at" in completion_call(other) and "prompt_tokens" not in completion_call(other)
    assert [contents(history.messages_and_choices) for history in trajectory.additional_histories] == [
        [("user", "hello"), ("choice", "reply 1")],
        [("user", "hello"), ("choice", "reply 2"), ("user", "more"), ("choice", "reply 3")],
    ]


async def test_tool_calls_in_pieces(endpoint: Endpoint, ask: Ask):
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1e3}'}}
    endpoint.say = [{"tool_calls": [call]}]
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]

    async def rollout() -> None:
        await ask(messages=ASK, tools=tools, stream=True)
        spelled = {**call, "function": {"name": "look", "arguments": '{ "at":1000.0 }'}}
        back = {"role": "assistant", "content": "", "tool_calls": [spelled]}
        await ask(messages=[*ASK, back, {"role": "tool", "tool_call_id": "c1", "content": "7"}], tools=tools)

    trajectory = await capture_auto_trajectory(rollout())
    assert not trajectory.additional_histories and len(trajectory.messages_and_choices) == 4
    (sampled,) = trajectory.messages_and_choices[1].message.tool_calls
    assert sampled.model_dump(exclude_none=True) == call
    assert trajectory.tools == tools


async def test_other_tools_or_another_prompt_begin_another_history(endpoint: Endpoint):
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    client = endpoint.openai()

    async def rollout() -> None:
        create = client.chat.completions.create
        await create(model="m", messages=ASK)
        await create(model="m", messages=ASK)  # the same prompt sampled again
        back = {"role": "assistant", "content": "reply 0"}
        await create(model="m", messages=[*ASK, back, ASK[0]], tools=tools)
        await create(model="m", messages=[{"role": "system", "content": "sub-agent"}, *ASK])

    trajectory = await capture_auto_trajectory(rollout())
    assert len(trajectory.messages_and_choices) == 2
    assert [history.tools for history in trajectory.additional_histories] == [None, tools, None]
    assert contents(trajectory.additional_histories[1].messages_and_choices) == [
        ("user", "hello"),
        ("assistant", "reply 0"),
        ("user", "hello"),
        ("choice", "reply 2"),
    ]


@pytest.mark.parametrize(
    "said",
    [
        {"content": "  so be it \n", "reasoning_content": "hmm"},
        {
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "no"}}],
        },
    ],
)
@pytest.mark.parametrize("spelling", ["object", "dump", "nulls dropped", "stripped"])
async def test_whatever_clients_do_to_a_reply_on_its_way_back(endpoint: Endpoint, said, spelling):
    endpoint.say = [said]
    client = endpoint.openai()

    async def rollout() -> None:
        first = await client.chat.completions.create(model="m", messages=ASK)
        message = first.choices[0].message
        back: Any = {
            "object": message,
            "dump": message.model_dump(),
            "nulls dropped": message.model_dump(exclude_none=True, exclude={"reasoning_content"}),
            "stripped": message.model_dump() | {"content": (message.content or "").strip()},
        }[spelling]
        await client.chat.completions.create(model="m", messages=[*ASK, back, *ASK])

    trajectory = await capture_auto_trajectory(rollout())
    assert [type(item) is dict for item in trajectory.messages_and_choices] == [True, False, True, False]
    assert not trajectory.additional_histories


async def test_a_reply_that_was_cut_off_is_context(endpoint: Endpoint):
    for client in (endpoint.openai(), endpoint.ours()):

        async def rollout(client: Any = client) -> None:
            stream = await client.chat.completions.create(model="m", messages=ASK, stream=True)
            async for chunk in stream:
                if chunk.choices[0].delta.content == "p":
                    break
            await stream.close()

        trajectory = await capture_auto_trajectory(rollout())
        assert contents(trajectory.messages_and_choices) == [("user", "hello"), ("assistant", "rep")]


async def test_a_stream_that_ends_after_its_scope_is_nobody_s(endpoint: Endpoint):
    for client in (endpoint.openai(), endpoint.ours()):
        streams = []

        async def rollout(client: Any = client, streams: list[Any] = streams) -> None:
            streams.append(await client.chat.completions.create(model="m", messages=ASK, stream=True))

        trajectory = await capture_auto_trajectory(rollout())
        async for _ in streams[0]:
            pass
        assert trajectory.messages_and_choices == []


@pytest.mark.parametrize("stop_at", ["[DONE]", '"finish_reason": "stop"', '"y"'])
async def test_readers_that_stop_and_never_close(endpoint: Endpoint, stop_at: str):
    """What was read of a stream that was left open is heard when its last event came, or the scope ends."""
    endpoint.say = [{"content": "so be it"}, {"content": "reply"}]
    left_open = []

    async def rollout() -> None:
        http = endpoint.http(httpx)
        for messages in (ASK, [*ASK, {"role": "assistant", "content": "so be it"}, *ASK]):
            body = {"model": "m", "messages": messages, "stream": True}
            request = http.build_request("POST", "http://x/v1/chat/completions", json=body)
            left_open.append(await http.send(request, stream=True))
            async for line in left_open[-1].aiter_lines():
                left_open.append(line)
                if stop_at in line:
                    break

    trajectory = await capture_auto_trajectory(rollout())
    assert contents(trajectory.messages_and_choices) == [
        ("user", "hello"),
        ("choice", "so be it"),
        ("user", "hello"),
        ("assistant" if stop_at == '"y"' else "choice", "reply"),
    ]


@pytest.mark.parametrize("kind", ["application/octet-stream", "text/event-stream"])
async def test_a_stream_without_a_reason_that_ends_with_done_is_a_turn(kind: str):
    delta = {"index": 0, "delta": {"role": "assistant", "content": "hi"}, "finish_reason": None}
    head = {"id": "c", "created": 1, "model": "m", "object": "chat.completion.chunk"}
    body = f"data: {json.dumps({**head, 'choices': [delta]})}\n\ndata: [DONE]\n\ndata: [DONE]\n\n"

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": kind}, content=body.encode())

    async def rollout() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
            asked = {"model": "m", "messages": ASK, "stream": True}
            await http.post("http://x/v1/chat/completions", json=asked)

    trajectory = await capture_auto_trajectory(rollout())
    _, choice = trajectory.messages_and_choices
    assert (choice.finish_reason, choice.message.content) == ("stop", "hi")


async def test_what_is_no_chat_completion_is_left_alone(endpoint: Endpoint):
    async def rollout() -> None:
        async with endpoint.http(httpx) as http:
            await http.post("http://x/v1/embeddings", json={"messages": [1]})
            await http.post("http://x/v1/chat", content=b"messages")
            await http.get("http://x/")

    trajectory = await capture_auto_trajectory(rollout())
    assert trajectory.messages_and_choices == [] and list(trajectory.metrics) == ["duration"]


async def test_nested_captures_and_their_neighbours(endpoint: Endpoint):
    ours, theirs = endpoint.ours(), endpoint.openai()
    inner: list[Trajectory] = []

    async def sub_agent() -> None:
        await theirs.chat.completions.create(model="m", messages=[{"role": "user", "content": "inner"}])

    async def rollout() -> None:
        await ours.chat.completions.create(model="m", messages=ASK)
        outer = auto_trajectory(required=True)
        inner.append(await capture_auto_trajectory(sub_agent()))
        assert auto_trajectory() is outer

    outer = await capture_auto_trajectory(rollout())
    assert contents(outer.messages_and_choices) == [("user", "hello"), ("choice", "reply 0")]
    assert contents(inner[0].messages_and_choices) == [("user", "inner"), ("choice", "reply 1")]
    assert outer.rollout_id and inner[0].rollout_id and outer.rollout_id != inner[0].rollout_id


async def test_side_by_side_each_hears_its_own(endpoint: Endpoint):
    client = endpoint.openai()
    outside = endpoint.http(httpx2)

    async def rollout(name: str) -> None:
        for _ in range(3):
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": name}])
            await asyncio.sleep(0)

    async def unrelated() -> None:
        for _ in range(20):
            await outside.post("http://x/v1/chat/completions", json={"model": "m", "messages": ASK})

    names = [f"rollout {number}" for number in range(8)]
    *captured, _ = await asyncio.gather(
        *(capture_auto_trajectory(rollout(name)) for name in names), unrelated()
    )
    for name, trajectory in zip(names, captured, strict=True):
        histories = [trajectory, *trajectory.additional_histories]
        assert [contents(history.messages_and_choices)[0] for history in histories] == [("user", name)] * 3


async def test_what_a_rollout_raises_is_raised_and_nothing_stays(endpoint: Endpoint):
    async def rollout() -> None:
        assert sends() != SENDS
        assert current_rollout() is not None
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await capture_auto_trajectory(rollout())
    assert sends() == SENDS and auto_trajectory() is None and current_rollout() is None
    with pytest.raises(RuntimeError, match="No auto trajectory in context"):
        auto_trajectory(required=True)
    assert issubclass(NoTrajectoryError, RuntimeError)


@pytest.mark.slow
def test_scopes_in_many_threads_leave_nothing_behind(endpoint: Endpoint):
    async def rollout() -> None:
        client = endpoint.openai()
        for _ in range(5):
            await client.chat.completions.create(model="m", messages=ASK)

    captured: list[Trajectory] = []

    def run() -> None:
        captured.extend(asyncio.run(capture_auto_trajectory(rollout())) for _ in range(5))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=240)
    assert len(captured) == 40
    assert all(len(trajectory.additional_histories) == 4 for trajectory in captured)


async def test_a_tap_that_somebody_wrapped_is_inert_afterwards(endpoint: Endpoint):
    seen = []

    async def rollout() -> None:
        tapped = httpx.AsyncClient.send

        async def traced(client: Any, request: Any, **options: Any) -> Any:
            seen.append(str(request.url))
            return await tapped(client, request, **options)

        httpx.AsyncClient.send = traced

    async def ask_once() -> None:
        async with endpoint.http(httpx) as http:
            await http.post("http://x/v1/chat/completions", json={"model": "m", "messages": ASK})

    try:
        await capture_auto_trajectory(rollout())
        await ask_once()
        trajectory = await capture_auto_trajectory(ask_once())
    finally:
        httpx.AsyncClient.send = SENDS[1]
    assert len(seen) == 2
    assert contents(trajectory.messages_and_choices) == [("user", "hello"), ("choice", "reply 1")]
