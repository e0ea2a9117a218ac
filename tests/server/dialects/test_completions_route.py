"""Raw prompts through the real openai client: texts, ids, several at once, streams, scores."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from live import KEY, Live
from scripted_engine import Script

from art.engine.protocol import GenerateRequest
from art.errors import RequestError
from art.server.jobs.http_teacher import HttpTeacher
from art.server.settings import TeacherSettings
from art.wire.algorithm import TeacherSpec
from art.wire.rollouts import ROLLOUT_HEADER

IN_GAME = {"extra_headers": {ROLLOUT_HEADER: "game-1"}}


def says(live: Live, text: str, **more: Any) -> None:
    """Let the engine answer with the ids of a text."""
    live.engine.answer = lambda request: Script(ids=live.renderer.encode(text), **more)


async def test_a_text_is_continued_as_it_is(live: Live) -> None:
    reply = await live.client.completions.create(model="player", prompt="Once <|im_start|>", **IN_GAME)
    choice = reply.choices[0]
    assert (choice.text, choice.finish_reason) == ("hello", "stop")
    assert choice.model_extra["step"] == 3
    (request,) = live.engine.requests
    assert list(request.prompt_ids) == live.renderer.encode("Once <|im_start|>")
    assert request.adapter == "games/player@3"
    assert request.sampling.max_tokens == 16
    (record,) = await live.ledger.rollout("game-1")
    assert record.sample_id == choice.model_extra["sample_id"]
    assert list(record.prompt_ids) == list(request.prompt_ids)
    assert list(record.completion_ids) == live.engine.emitted[request.request_id]
    assert record.fork_reason is None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (len(request.prompt_ids), 2)
    assert reply.object == "text_completion" and reply.system_fingerprint == "games/player@3"


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", ["ab"]),
        (["ab", "c"], ["ab", "c"]),
        ([64, 65], ["ab"]),
        ([[64, 65], [66]], ["ab", "c"]),
    ],
)
async def test_every_shape_of_prompt_is_read(live: Live, prompt: Any, texts: list[str]) -> None:
    ids = live.renderer.encode("abc")
    prompt = _with_ids(prompt, dict(zip((64, 65, 66), ids, strict=True)))
    reply = await live.client.completions.create(model="tiny", prompt=prompt, n=2)
    assert [choice.index for choice in reply.choices] == list(range(2 * len(texts)))
    asked = [live.renderer.decode(request.prompt_ids) for request in live.engine.requests]
    assert sorted(asked) == sorted([*texts, *texts])
    for choice in reply.choices:
        (record,) = await live.ledger.samples([choice.model_extra["sample_id"]])
        assert live.renderer.decode(record.prompt_ids) == texts[choice.index // 2]


def _with_ids(prompt: Any, ids: dict[int, int]) -> Any:
    if isinstance(prompt, list):
        return [_with_ids(one, ids) for one in prompt]
    return ids.get(prompt, prompt)


async def test_sampling_options_reach_the_engine(live: Live) -> None:
    says(live, "one;two", stop_string=";")
    reply = await live.client.completions.create(
        model="tiny",
        prompt="x",
        n=2,
        best_of=2,
        seed=7,
        temperature=0.5,
        top_p=0.9,
        max_tokens=30,
        stop=";",
        user="somebody",
        extra_body={"top_k": 5, "min_p": 0.01},
    )
    assert [choice.text for choice in reply.choices] == ["one", "one"]
    first, second = sorted((r.sampling for r in live.engine.requests), key=lambda s: s.seed)
    assert (first.seed, second.seed, first.max_tokens, first.stop) == (7, 8, 30, (";",))
    assert (first.temperature, first.top_p, first.top_k, first.min_p) == (0.5, 0.9, 5, 0.01)


async def test_constraints_biases_and_stops_reach_the_engine(live: Live) -> None:
    await live.client.completions.create(
        model="tiny",
        prompt="x",
        logit_bias={"5": -100},
        extra_body={"guided_choice": ["yes", "no"], "stop_token_ids": [7]},
    )
    sampling = live.engine.requests[0].sampling
    assert sampling.constraint is not None and sampling.constraint.kind == "choice"
    assert sampling.logit_bias == ((5, -100.0),)
    assert 7 in sampling.stop_token_ids


async def test_ids_and_logprobs_are_told(live: Live) -> None:
    says(live, "é!<|im_end|>")
    reply = await live.client.completions.create(
        model="tiny", prompt="ab", logprobs=0, extra_body={"return_token_ids": True}
    )
    choice = reply.choices[0]
    ids = live.renderer.encode("é!<|im_end|>")
    assert choice.model_extra["prompt_token_ids"] == live.renderer.encode("ab")
    assert choice.model_extra["token_ids"] == ids
    assert choice.logprobs.token_logprobs == live.engine.logprobs(len(ids))
    assert choice.logprobs.tokens[-2:] == ["!", "<|im_end|>"]
    assert choice.logprobs.text_offset == [0, 0, 1, 2]


async def test_an_echo_has_the_prompt_and_its_logprobs(live: Live) -> None:
    reply = await live.client.completions.create(model="tiny", prompt="ab", echo=True, logprobs=0)
    choice = reply.choices[0]
    assert choice.text == "abhello"
    prompt = live.renderer.encode("ab")
    sampled = live.engine.logprobs(2)
    assert choice.logprobs.token_logprobs == [None, *live.engine.logprobs(len(prompt) - 1), *sampled]
    assert choice.logprobs.tokens == ["a", "b", "hello", "<|im_end|>"]
    plain = await live.client.completions.create(model="tiny", prompt="ab", echo=True)
    assert (plain.choices[0].text, plain.choices[0].logprobs) == ("abhello", None)


async def test_another_server_can_be_taught_by_this_one(live: Live) -> None:
    settings = TeacherSettings(urls=[f"{live.url}/v1"], key=KEY)
    teacher = HttpTeacher(TeacherSpec(kind="server", url=f"{live.url}/v1", model="player"), settings)
    rows = [live.renderer.encode("abc"), live.renderer.encode("hello there")]
    assert await teacher.logprobs(rows) == [live.engine.logprobs(len(row) - 1) for row in rows]


@pytest.mark.parametrize("text", ["hello", "héllo 🙂 <tool_call>\n{}\n</tool_call>", "", "<think>hm"])
async def test_a_stream_adds_up_to_the_whole_reply(live: Live, text: str) -> None:
    says(live, f"{text}<|im_end|>")
    whole = await live.client.completions.create(model="player", prompt=["ab", "c"], max_tokens=99)
    stream = await live.client.completions.create(
        model="player",
        prompt=["ab", "c"],
        max_tokens=99,
        stream=True,
        echo=False,
        logprobs=0,
        stream_options={"include_usage": True},
        extra_body={"return_token_ids": True},
    )
    texts, finishes, ids, logprobs, prompts = ["", ""], [None, None], [[], []], [[], []], [None, None]
    async for chunk in stream:
        for choice in chunk.choices:
            at, extra = choice.index, choice.model_extra
            texts[at] += choice.text
            finishes[at] = choice.finish_reason or finishes[at]
            ids[at] += extra.get("token_ids", [])
            logprobs[at] += choice.logprobs.token_logprobs if choice.logprobs else []
            prompts[at] = extra.get("prompt_token_ids", prompts[at])
            (record,) = await live.ledger.samples([extra["sample_id"]]) if choice.finish_reason else [None]
            if record is not None:
                assert list(record.completion_ids) == ids[at]
        usage = chunk.usage
    assert texts == [text, text] == [choice.text for choice in whole.choices]
    assert finishes == ["stop", "stop"]
    assert logprobs == [live.engine.logprobs(len(ids[0]))] * 2
    assert prompts == [live.renderer.encode("ab"), live.renderer.encode("c")]
    assert usage.model_dump() == whole.usage.model_dump()


async def test_an_echo_streams_first(live: Live) -> None:
    stream = await live.client.completions.create(model="tiny", prompt="ab", echo=True, stream=True)
    texts = [choice.text async for chunk in stream for choice in chunk.choices]
    assert texts[0] == "ab" and "".join(texts) == "abhello"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_goes_on_from_a_completion_is_its_child(live: Live, stream: bool) -> None:
    def count(request: GenerateRequest) -> Script:
        return Script(ids=live.renderer.encode(f"{len(live.engine.requests)}<|im_end|>"))

    live.engine.answer = count
    ids = live.renderer.encode("start")
    for _ in range(3):
        reply = await live.client.completions.create(
            model="tiny", prompt=ids, stream=stream, extra_body={"return_token_ids": True}, **IN_GAME
        )
        chunks = [chunk async for chunk in reply] if stream else [reply]
        pieces = [choice.model_extra.get("token_ids", []) for chunk in chunks for choice in chunk.choices]
        ids = [*ids, *(one for piece in pieces for one in piece), *live.renderer.encode(" more")]
    records = await live.ledger.rollout("game-1")
    assert [record.parent_id for record in records] == [None, records[0].sample_id, records[1].sample_id]
    assert [record.shared > 0 for record in records] == [False, True, True]
    assert [list(record.prompt_ids) for record in records] == [
        list(r.prompt_ids) for r in live.engine.requests
    ]
    other = await live.client.completions.create(model="tiny", prompt=ids)
    (record,) = await live.ledger.samples([other.choices[0].model_extra["sample_id"]])
    assert record.parent_id is None, "another rollout's samples are no parents"


async def test_a_raw_prompt_is_never_taken_for_a_conversation(live: Live) -> None:
    hello = [{"role": "user", "content": "hi"}]
    raw = live.renderer.decode(live.renderer.render(hello, None))
    first = await live.client.completions.create(model="tiny", prompt=raw, **IN_GAME)
    said = {"role": "assistant", "content": first.choices[0].text}
    for hint in ({}, {"sample_id": first.choices[0].model_extra["sample_id"]}):
        await live.client.chat.completions.create(
            model="tiny", messages=[*hello, {**said, **hint}, *hello], **IN_GAME
        )
    _, unknown, edited = await live.ledger.rollout("game-1")
    assert unknown.parent_id is None and unknown.fork_reason == "unknown_history"
    assert edited.parent_id is None and edited.fork_reason == "history_edited"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [1, -1]}, "prompt"),
        ({"prompt": [1, True]}, "prompt"),
        ({"prompt": [[1], [2**40]]}, "prompt[1]"),
        ({"prompt": "x" * 5000}, "prompt"),
        ({"prompt": ["x"] * 100, "n": 2}, "prompt"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"max_tokens": 0, "echo": True, "stream": True}, "max_tokens"),
        ({"suffix": "end"}, "suffix"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"extra_body": {"messages": []}}, "messages"),
        ({"extra_body": {"prompt_logprobs": 21}}, "prompt_logprobs"),
        ({"extra_body": {"prompt_logprobs": 0}, "stream": True}, "prompt_logprobs"),
        ({"logprobs": 0, "echo": True, "stream": True}, "logprobs"),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(live: Live, change: dict, named: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await live.client.completions.create(**{"model": "tiny", "prompt": "x", **change})
    assert refused.value.param == named
    assert named.partition("[")[0] in refused.value.message
    assert not live.engine.requests


async def test_the_address_names_the_rollout(live: Live) -> None:
    there = live.client.with_options(base_url=f"{live.url}/r/game-2/v1")
    await there.completions.create(model="tiny", prompt="x")
    assert len(await live.ledger.rollout("game-2")) == 1


@pytest.mark.parametrize(
    ("code", "named"), [("invalid_logit_bias", "logit_bias"), ("invalid_token_id", "prompt"), ("other", None)]
)
async def test_what_an_engine_refuses_names_the_field(live: Live, code: str, named: str | None) -> None:
    """Engines know codes; which field of which dialect it was is known here."""

    def refuse(request: GenerateRequest) -> Script:
        raise RequestError("no such id", status=400, code=code)

    live.engine.answer = refuse
    with pytest.raises(openai.BadRequestError, match="no such id") as refused:
        await live.client.completions.create(model="tiny", prompt=[1], max_tokens=4)
    assert (refused.value.code, refused.value.param) == (code, named)
