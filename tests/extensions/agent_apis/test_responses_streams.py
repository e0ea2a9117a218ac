"""Events of the Responses API: numbered, complete, and adding up to the whole response."""

from __future__ import annotations

from typing import Any

import pytest
from live import Live
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from scripted_engine import Script
from test_responses import IN_GAME, READ, TWO_CALLS, converse, says

from art.engine.protocol import GenerateRequest
from art.errors import OverloadedError, WorkerDiedError

EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

TEXTS = [
    "hello",
    "héllo wörld 🙂 x",
    "<think>\nhm so\n</think>\n\nhello",
    TWO_CALLS,
    "<think>never closed",
    "",
]


def timeless(response: Response) -> dict[str, Any]:
    """What two responses of one text have in common."""
    told = response.model_dump(mode="json")
    sample = told["sample_id"].rpartition("_")[2]
    for name in ("created_at", "completed_at"):
        told.pop(name)
    return _named_alike(told, sample)


def _named_alike(value: Any, sample: str) -> Any:
    if isinstance(value, dict):
        return {name: _named_alike(one, sample) for name, one in value.items()}
    if isinstance(value, list):
        return [_named_alike(one, sample) for one in value]
    return value.replace(sample, "S") if isinstance(value, str) else value


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("chunk", [1, 3])
async def test_events_add_up_to_the_whole_response(live: Live, text: str, chunk: int) -> None:
    says(live, text, chunk=chunk)
    options: dict[str, Any] = {"model": "player", "input": "hi", "tools": [READ]}
    whole = await live.client.responses.create(**options)
    events = [event async for event in await live.client.responses.create(stream=True, **options)]
    for event in events:
        EVENTS.validate_python(event.model_dump(by_alias=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"
    assert timeless(events[-1].response) == timeless(whole)
    assert {event.response.id for event in events if hasattr(event, "response")} == {events[-1].response.id}
    by_type: dict[str, list[Any]] = {}
    for event in events:
        by_type.setdefault(event.type, []).append(event)
    texts = [event.delta for event in by_type.get("response.output_text.delta", ())]
    assert "".join(texts) == whole.output_text and "\ufffd" not in "".join(texts)
    thoughts = [event.delta for event in by_type.get("response.reasoning_text.delta", ())]
    kept = [part.text for item in whole.output if item.type == "reasoning" for part in item.content]
    assert "".join(thoughts) == "".join(kept)
    for kind in ("added", "done"):
        items = by_type[f"response.output_item.{kind}"]
        assert [event.output_index for event in items] == list(range(len(whole.output)))
    done = [event.item.model_dump() for event in by_type["response.output_item.done"]]
    assert done == [item.model_dump() for item in events[-1].response.output]
    calls = by_type.get("response.function_call_arguments.done", [])
    assert [event.arguments for event in calls] == [
        i.arguments for i in whole.output if i.type == "function_call"
    ]
    (record,) = await live.ledger.samples([events[-1].response.model_extra["sample_id"]])
    assert list(record.completion_ids) == live.renderer.encode(f"{text}<|im_end|>")


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS)
async def test_the_sdk_s_helper_understands_the_stream(live: Live, text: str) -> None:
    says(live, text)
    async with live.client.responses.stream(model="player", input="hi", tools=[READ]) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert (await live.client.responses.retrieve(final.id)).output_text == final.output_text


async def test_a_cut_off_stream_is_incomplete(live: Live) -> None:
    says(live, "abcdef")
    stream = await live.client.responses.create(model="tiny", input="hi", max_output_tokens=3, stream=True)
    *_, last = [event async for event in stream]
    assert last.type == "response.incomplete"
    assert (last.response.status, last.response.output_text) == ("incomplete", "abc")


@pytest.mark.parametrize(
    ("error", "code"),
    [(WorkerDiedError("engine died"), "server_error"), (OverloadedError("full"), "rate_limit_exceeded")],
)
async def test_a_failure_after_the_first_byte_is_an_event(live: Live, error: Exception, code: str) -> None:
    original = live.engine.generate

    async def dies(request: GenerateRequest):
        async for delta in original(request):
            yield delta
            raise error

    live.engine.generate = dies
    live.engine.answer = lambda request: Script(ids=live.renderer.encode("hello there<|im_end|>"))
    *_, last = [e async for e in await live.client.responses.create(model="tiny", input="hi", stream=True)]
    EVENTS.validate_python(last.model_dump(by_alias=True))
    assert (last.type, last.response.status) == ("response.failed", "failed")
    assert (last.response.error.code, last.response.error.message) == (code, str(error))
    assert await live.ledger.is_empty()


async def test_a_streamed_conversation_extends_its_ids(live: Live) -> None:
    class Streaming:
        """Looks like a client, asks for streams, gives their responses."""

        @property
        def responses(self) -> Streaming:
            return self

        async def create(self, **options: Any) -> Response:
            *_, last = [event async for event in await live.client.responses.create(stream=True, **options)]
            return last.response

    history: list[Any] = []

    def follow(reply: Any, new: list[Any]) -> dict[str, Any]:
        history.extend(item.model_dump(exclude_unset=True) for item in (reply.output if reply else ()))
        history.extend(new)
        return {"model": "player", "tools": [READ], "input": list(history), **IN_GAME}

    await converse(live, follow, client=Streaming())  # type: ignore[arg-type]
    records = await live.ledger.rollout("game-1")
    assert [record.parent_id for record in records] == [None, *(r.sample_id for r in records[:2])]
    assert [record.fork_reason for record in records] == [None, None, None]
