"""What is recorded of calls: complete replies of four dialects, in scopes that close like a stack."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from typing import Any

import httpx
import pytest
from openai.types.chat import ChatCompletion
from scripted import Endpoint

import art
from art.errors import ConfigurationError
from art.exchanges import EXCHANGES, exchange_of
from art.gather_context import GatherContext
from art.recording.captured_reply import read_reply
from art.trajectories import record_metrics
from art.types import sample_id

ASK = [{"role": "user", "content": "hello"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}


def recorded(dialect: Any, request: dict[str, Any], reply: dict[str, Any], at: float = 1.0) -> Any:
    body = json.dumps(reply).encode()
    return exchange_of(dialect, request, read_reply(dialect, body, streamed=False), at, at + 1)


def events(*pieces: dict[str, Any]) -> bytes:
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (one.get("type", "x").encode(), json.dumps(one).encode())
        for one in pieces
    )


def anthropic_events(*, ends: bool = True) -> bytes:
    start = {"id": "m1", "role": "assistant", "model": "m", "content": [], "usage": {"input_tokens": 3}}
    pieces = [
        {"type": "message_start", "message": {**start, "sample_id": "s1", "step": 2}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "let "}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "me"}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "I "}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "look"}},
        {
            "type": "content_block_start",
            "index": 2,
            "content_block": {"type": "tool_use", "id": "c1", "name": "look", "input": {}},
        },
        {
            "type": "content_block_delta",
            "index": 2,
            "delta": {"type": "input_json_delta", "partial_json": '{"at"'},
        },
        {
            "type": "content_block_delta",
            "index": 2,
            "delta": {"type": "input_json_delta", "partial_json": ": 1}"},
        },
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
    ]
    return events(*pieces, *([{"type": "message_stop"}] if ends else []))


def test_a_streamed_message_is_put_together_and_a_chat() -> None:
    reply = read_reply("messages", anthropic_events(), streamed=True)
    assert [block.type for block in reply.content] == ["thinking", "text", "tool_use"]
    assert reply.content[1].text == "I look" and reply.content[2].input == {"at": 1}
    assert reply.usage == {"input_tokens": 3, "output_tokens": 9} and reply.stop_reason == "tool_use"
    assert read_reply("messages", anthropic_events(ends=False), streamed=True) is None

    tools = [{"name": "look", "description": "d", "input_schema": {"type": "object"}}]
    asked = {"system": "be brief", "messages": ASK, "tools": tools}
    said = [block.model_dump() for block in reply.content]
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "seven"}]}
    back = [{"role": "assistant", "content": said}, {"role": "user", "content": [result]}]
    final = {
        "id": "m2",
        "content": [{"type": "text", "text": "7"}],
        "stop_reason": "end_turn",
        "sample_id": "s2",
    }
    exchanges = [
        exchange_of("messages", asked, reply, 1, 2),
        recorded("messages", {**asked, "messages": [*ASK, *back]}, final, 3),
    ]
    trajectory = art.Trajectory(exchanges={"messages": exchanges})
    system, user, first, tool, second = trajectory.messages_and_choices
    assert system == {"role": "system", "content": "be brief"} and user == ASK[0]
    assert (sample_id(first), first.step, first.finish_reason) == ("s1", 2, "tool_calls")
    assert first.message.tool_calls[0].function.arguments == '{"at": 1}'
    assert first.message.reasoning_content == "let me"
    assert tool == {"role": "tool", "tool_call_id": "c1", "content": "seven"}
    assert (sample_id(second), second.message.content) == ("s2", "7")
    assert trajectory.tools == [
        {
            "type": "function",
            "function": {"name": "look", "description": "d", "parameters": {"type": "object"}},
        }
    ]


def test_responses_continue_each_other_by_items_and_by_id() -> None:
    call = {"type": "function_call", "id": "fc", "call_id": "c1", "name": "look", "arguments": '{"at": 1}'}
    thought = {
        "type": "reasoning",
        "id": "rs",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "hm"}],
    }
    first = {"id": "r1", "output": [thought, call], "status": "completed", "sample_id": "s1"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "seven"}
    text = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "7"}]}
    second = {"id": "r2", "output": [text], "status": "completed", "sample_id": "s2"}
    third = {"id": "r3", "output": [text], "status": "incomplete", "sample_id": "s3"}
    exchanges = [
        recorded("responses", {"input": "hello", "instructions": "brief"}, first, 1),
        recorded(
            "responses",
            {"input": [{"role": "user", "content": "hello"}, thought, call, output], "instructions": "brief"},
            second,
            3,
        ),
        recorded(
            "responses", {"input": "and?", "previous_response_id": "r2", "instructions": "brief"}, third, 5
        ),
    ]
    trajectory = art.Trajectory(exchanges={"responses": exchanges})
    assert not trajectory.additional_histories
    roles = [
        one["role"] if isinstance(one, dict) else sample_id(one) for one in trajectory.messages_and_choices
    ]
    assert roles == ["system", "user", "s1", "tool", "s2", "user", "s3"]
    assert trajectory.messages_and_choices[-1].finish_reason == "length"
    streamed = events(
        {"type": "response.created", "response": {}}, {"type": "response.completed", "response": first}
    )
    assert read_reply("responses", streamed, streamed=True).id == "r1"
    assert read_reply("responses", streamed[:60], streamed=True) is None


def test_completions_are_put_together_and_each_prompt_is_a_history() -> None:
    chunks = [
        {
            "id": "c",
            "model": "m",
            "choices": [{"index": 0, "text": "a", "token_ids": [1], "sample_id": "s0"}],
        },
        {"id": "c", "choices": [{"index": 1, "text": "x", "finish_reason": "stop", "sample_id": "s1"}]},
        {"id": "c", "choices": [{"index": 0, "text": "b", "token_ids": [2], "finish_reason": "length"}]},
    ]
    body = b"".join(b"data: %s\n\n" % json.dumps(one).encode() for one in chunks)
    assert read_reply("completions", body, streamed=True) is None, "it did not say that it is the end"
    reply = read_reply("completions", body + b"data: [DONE]\n\n", streamed=True)
    assert [(one.text, one.finish_reason) for one in reply.choices] == [("ab", "length"), ("x", "stop")]
    assert reply.choices[0].token_ids == [1, 2]
    exchange = exchange_of("completions", {"prompt": ["say a", [4, 5]]}, reply, 1, 2)
    trajectory = art.Trajectory(exchanges={"completions": [exchange]})
    first, other = trajectory, trajectory.additional_histories[0]
    assert first.messages_and_choices[0] == {"role": "user", "content": "say a"}
    assert other.messages_and_choices[0] == {"role": "user", "content": "[2 token ids]"}
    assert [sample_id(one.messages_and_choices[1]) for one in (first, other)] == ["s0", "s1"]


async def test_a_block_records_what_our_client_asks_and_its_dump_is_the_same_trajectory() -> None:
    endpoint = Endpoint()
    client = endpoint.ours()
    with art.Trajectory(reward=0.5, metadata={"scenario": "a"}) as trajectory:
        assert art.current_trajectory() is trajectory
        messages = list(ASK)
        reply = await client.chat.completions.create(model="m", messages=messages, extra_body={"seed": 3})
        messages += [reply.choices[0].message, {"role": "user", "content": "more"}]
        await client.chat.completions.create(model="m", messages=messages, stream=False)
        with art.no_capture():
            await client.chat.completions.create(model="m", messages=ASK)
        stream = await client.chat.completions.create(model="m", messages=ASK, stream=True)
        await anext(aiter(stream))
        await stream.close()
    assert art.current_trajectory() is None and trajectory.metrics["duration"] >= 0
    first, second = trajectory.exchanges.chat_completions  # the stream that was left early is none
    assert first.request == {"model": "m", "messages": ASK, "seed": 3}, "as it was when it was sent"
    assert isinstance(first.response, ChatCompletion) and first.model == "m"
    assert first.start_time <= first.end_time <= second.start_time
    assert second.response.choices[0] is trajectory.messages_and_choices[-1]

    dumped = trajectory.model_dump_json()
    fields = json.loads(dumped)
    assert "exchanges" in fields and not {"messages_and_choices", "tools"} & fields.keys()
    assert "http://ours" not in dumped and '"k"' not in dumped, "who answered stays in this process"
    again = art.Trajectory.model_validate_json(dumped)
    assert again.messages() == trajectory.messages() and again.model_dump_json() == dumped
    assert [sample_id(one) for one in again.messages_and_choices[1::2]] == ["s0", "s1"]
    copied = copy.deepcopy(trajectory)
    assert copied.messages() == trajectory.messages()
    assert copied.exchanges.chat_completions[0]._answered_by == first._answered_by is not None
    assert b"http://ours" not in pickle.dumps(trajectory)
    assert "exchanges" not in art.Trajectory(messages_and_choices=ASK).model_dump()


async def test_a_reply_of_another_server_is_context() -> None:
    reply = {
        "id": "x",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    }
    trajectory = art.Trajectory(
        exchanges={"chat_completions": [recorded("chat_completions", {"messages": ASK}, reply)]}
    )
    assert trajectory.messages_and_choices == [*ASK, {"role": "assistant", "content": "hi"}]


def _answered(model: str, text: str, *, at: float, tokens: int | None = None) -> Any:
    reply = {
        "id": text,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
                "sample_id": text,
                "step": int(at),
            }
        ],
    }
    usage = {} if tokens is None else {"usage": {"completion_tokens": tokens}}
    return recorded("chat_completions", {"model": model, "messages": ASK}, reply | usage, at)


def test_completion_tokens_of_recorded_calls_are_their_sum() -> None:
    message = {"id": "m1", "role": "assistant", "model": "m", "content": [], "usage": {"output_tokens": 30}}
    response = {"id": "r1", "model": "m", "output": [], "usage": {"output_tokens": 400}}
    trajectory = art.Trajectory(
        exchanges={
            "chat_completions": [_answered("m", "a", at=1, tokens=2), _answered("m", "b", at=2)],
            "messages": [recorded("messages", {"messages": ASK, "model": "m"}, message)],
            "responses": [recorded("responses", {"input": "hello", "model": "m"}, response)],
        }
    )
    context = GatherContext()
    record_metrics(context, trajectory)
    assert trajectory.metrics["completion_tokens"] == 432 == context.metric_sums["completion_tokens"]
    silent = art.Trajectory(exchanges={"chat_completions": [_answered("m", "b", at=2)]})
    record_metrics(GatherContext(), silent)
    assert "completion_tokens" not in silent.metrics


@pytest.mark.extension
def test_a_copy_has_the_calls_of_some_models_alone() -> None:
    calls = [_answered("a", "one", at=1, tokens=3), _answered("b", "two", at=2, tokens=5)]
    trajectory = art.Trajectory(exchanges={"chat_completions": calls}, reward=0.5)
    trajectory.metrics["completion_tokens"] = 8
    only_b = trajectory.model_copy(include_models=["b"], update={"reward": 1.0})
    assert [one["content"] for one in only_b.messages()] == ["hello", "two"] and only_b.reward == 1.0
    assert only_b.exchanges.chat_completions == calls[1:] and not only_b.additional_histories
    assert (only_b.initial_policy_version, only_b.final_policy_version) == (2, 2)
    assert only_b.metrics == {"completion_tokens": 5} and trajectory.metrics == {"completion_tokens": 8}
    without_b = trajectory.model_copy(exclude_models=["b", "c"], deep=True)
    assert [one["content"] for one in without_b.messages()] == ["hello", "one"]
    assert len(trajectory.exchanges) == 2 and trajectory.model_copy().exchanges is trajectory.exchanges
    assert trajectory.model_copy(update={"reward": 2.0}).messages() == trajectory.messages()


@pytest.mark.extension
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"include_models": ["c"]}, "leaves no call; the calls are of a"),
        ({"include_models": []}, "leaves no call"),
        ({"exclude_models": ["a"]}, "leaves no call"),
        ({"include_models": "a"}, "give a list of names"),
        ({"include_models": ["a"], "update": {"tools": []}}, "tools of `update` follow from the calls"),
    ],
)
def test_a_copy_that_would_have_nothing_is_refused(options: dict[str, Any], said: str) -> None:
    recorded_one = art.Trajectory(exchanges={"chat_completions": [_answered("a", "one", at=1)]})
    with pytest.raises(ConfigurationError, match=said):
        recorded_one.model_copy(**options)
    with pytest.raises(ConfigurationError, match="no recorded calls"):
        art.Trajectory(messages_and_choices=ASK).model_copy(include_models=["a"])


def test_what_is_given_twice_or_unknown_is_an_error() -> None:
    exchange = recorded("completions", {"prompt": "a"}, {"id": "c", "choices": [{"index": 0, "text": "b"}]})
    with pytest.raises(ValueError, match="give either `exchanges`"):
        art.Trajectory(exchanges={"completions": [exchange]}, messages_and_choices=ASK)
    with pytest.raises(ValueError, match="embeddings"):
        art.Trajectory(exchanges={"embeddings": []})
    assert set(EXCHANGES) == set(art.Trajectory().exchanges.model_dump())
    for wrong in (b"[1]", b"{}", b"no json", b'{"error": {}}'):
        assert all(read_reply(dialect, wrong, streamed=False) is None for dialect in EXCHANGES)
        assert all(read_reply(dialect, wrong, streamed=True) is None for dialect in EXCHANGES)


async def test_scopes_close_in_their_order() -> None:
    outer, inner = art.Trajectory(), art.Trajectory()
    endpoint = Endpoint()
    with outer:
        with inner:
            await endpoint.openai().chat.completions.create(model="m", messages=ASK)
        with pytest.raises(RuntimeError, match="recorded already"), outer:
            pass
        await endpoint.openai().chat.completions.create(model="m", messages=ASK)
    assert len(outer.exchanges) == len(inner.exchanges) == 1 and outer.rollout_id != inner.rollout_id
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(RuntimeError, match="close the inner one first"):
        outer.__exit__(None, None, None)
    inner.__exit__(None, None, None)
    outer.__exit__(None, None, None)
    assert art.current_trajectory() is None


async def test_a_task_is_refused_and_an_error_passes() -> None:
    async def work() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await art.trajectory(work())
    assert art.current_trajectory() is None
    task = asyncio.create_task(asyncio.sleep(0))
    with pytest.raises(TypeError, match="give it a coroutine"):
        await art.trajectory(task)  # type: ignore[arg-type]
    await task


async def test_other_requests_and_failures_are_no_exchanges() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        status = 500 if "completions" in str(request.url) else 200
        return httpx.Response(status, json={"content": [], "choices": [], "data": []})

    with art.Trajectory() as trajectory:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
            await http.post("http://x/v1/chat/completions", json={"messages": ASK})
            await http.post("http://x/v1/embeddings", json={"input": "a"})
            await http.post("http://x/v1/messages", content=b"no json")
            await http.get("http://x/v1/models")
    assert not trajectory.exchanges and not trajectory.messages_and_choices


@pytest.mark.filterwarnings("error:Pydantic")
@pytest.mark.parametrize(
    ("path", "reply"),
    [
        ("messages", {"content": [7, {"type": "text"}]}),
        ("messages", {"content": [{"type": "tool_use", "name": {"a": 1}, "input": "x"}], "usage": "much"}),
        ("responses", {"output": [None]}),
        ("completions", {"choices": [{"index": "first", "text": 3}, "more"]}),
        ("chat/completions", {"choices": [{"message": {"role": 7}, "finish_reason": "stop"}]}),
    ],
)
async def test_a_reply_that_is_none_reaches_the_program_and_the_log(
    path: str, reply: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=reply))
    with art.Trajectory() as trajectory:
        async with httpx.AsyncClient(transport=transport) as http:
            asked = {"messages": ASK, "prompt": "a", "input": "a"}
            assert (await http.post(f"http://x/v1/{path}", json=asked)).json() == reply
    assert (
        art.Trajectory.model_validate_json(trajectory.model_dump_json()).messages() == trajectory.messages()
    )
    assert all("http://x/v1 is not recorded" in one.getMessage() for one in caplog.records)


async def test_a_group_keeps_its_order_and_ends_with_the_first_error() -> None:
    ended = []

    async def rollout(number: int, seconds: float, error: Exception | None = None) -> art.Trajectory:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            ended.append(number)
            raise
        if error is not None:
            raise error
        return art.Trajectory(reward=number)

    twice = rollout(7, 0.0)
    done = art.Trajectory(reward=9)
    group = await art.trajectory_group(
        [rollout(1, 0.05), twice, done, twice], metadata={"a": 1}, metrics={"m": 2.0}, logs=["l"]
    )
    assert [one.reward for one in group] == [1, 7, 9, 7] and group.trajectories[1] is group.trajectories[3]
    assert (group.metadata, group.metrics, group.logs) == ({"a": 1}, {"m": 2.0}, ["l"])
    with pytest.raises(KeyError, match="lost"):
        await art.trajectory_group([rollout(1, 60), rollout(2, 0.0, KeyError("lost"))])
    assert ended == [1]
    some = await art.trajectory_group(
        [rollout(1, 0.0), rollout(2, 0.0, KeyError("lost"))],
        return_exceptions=True,
        exceptions=[ValueError("before")],
    )
    assert [one.reward for one in some] == [1]
    assert ["before" in some.exceptions[0].message, "lost" in some.exceptions[1].message] == [True, True]

    async def nothing() -> None: ...

    with pytest.raises(TypeError, match="nothing"):
        await art.trajectory_group([nothing()])  # type: ignore[list-item]
