"""Fields of sampling that few requests have, in each dialect: what the engine is asked, told and recorded."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from live import Live

from art.batch.batch_types import Untrainable
from art.server.jobs.train_rows import group_rows, sampling_distribution
from art.wire.algorithm import Algorithm
from art.wire.jobs import TrainJobRequest
from art.wire.samples import split_candidates
from art.wire.training import SamplingSpec

HELLO = [{"role": "user", "content": "hi"}]
PENALTIES: dict[str, Any] = {"frequency_penalty": 0.5, "presence_penalty": -1.0}
OF_VLLM: dict[str, Any] = {"repetition_penalty": 1.25, "min_tokens": 2}
INCLUDED = ["message.output_text.logprobs"]


async def asked(live: Live, dialect: str) -> str:
    """Ask with all of them; the sample's id."""
    if dialect == "chat":
        chat = live.client.chat.completions
        reply: Any = await chat.create(model="tiny", messages=HELLO, extra_body=OF_VLLM, **PENALTIES)
        return str(reply.choices[0].model_extra["sample_id"])
    if dialect == "completions":
        raw = live.client.completions
        reply = await raw.create(model="tiny", prompt="ab", extra_body=OF_VLLM, **PENALTIES)
        return str(reply.choices[0].model_extra["sample_id"])
    body = {**OF_VLLM, **PENALTIES}
    reply = await live.client.responses.create(model="tiny", input="hi", extra_body=body)
    return str(reply.model_extra["sample_id"])


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["chat", "completions", "responses"])
async def test_penalties_reach_the_engine_the_ledger_and_the_trainer(live: Live, dialect: str) -> None:
    (record,) = await live.ledger.samples([await asked(live, dialect)])
    sampling = live.engine.requests[0].sampling
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.5, -1.0)
    assert (sampling.repetition_penalty, sampling.min_tokens) == (1.25, 2)
    for name, value in {**PENALTIES, **OF_VLLM}.items():
        assert record.sampling[name] == value
    spec = sampling_distribution(record, Algorithm())
    assert isinstance(spec, SamplingSpec) and spec.stop_token_ids == sampling.stop_token_ids != ()
    assert {name: getattr(spec, name) for name in PENALTIES | OF_VLLM} == PENALTIES | OF_VLLM


@pytest.mark.parametrize("stream", [False, True])
async def test_the_candidates_of_each_token_are_in_the_ledger_and_in_what_is_trained(
    live: Live, stream: bool
) -> None:
    for top_p in (0.9, 1.0):
        reply: Any = await live.client.chat.completions.create(
            model="player", messages=HELLO, top_p=top_p, stream=stream
        )
        parts = [part async for part in reply] if stream else [reply]
        (record,) = await live.ledger.samples([parts[-1].choices[0].model_extra["sample_id"]])
        ids = record.completion_ids.tolist()
        want = [[token, token + 1] for token in ids] if top_p < 1 else []
        assert ids and [one.tolist() for one in split_candidates(record.candidates)] == want
        (group,) = group_rows(_job(record.sample_id), {record.sample_id: record}, live.renderer)
        assert group.rollouts[0].samples[0].candidates == record.candidates
        supervised = _job(record.sample_id, loss={"name": "cross_entropy"}, advantage={"kind": "none"})
        (group,) = group_rows(supervised, {record.sample_id: record}, live.renderer)
        assert group.rollouts[0].samples[0].candidates == b"", "it trains the model's own distribution"


def _job(sample: str, **algorithm: Any) -> TrainJobRequest:
    trajectory = {"rollout": "r", "reward": 1.0, "samples": [sample]}
    asked = {"groups": [{"trajectories": [trajectory]}], "algorithm": algorithm}
    return TrainJobRequest.model_validate({"job_id": "j", **asked, "optimizer": {"learning_rate": 1e-3}})


async def test_what_penalises_nothing_is_not_kept(live: Live) -> None:
    reply = await live.client.chat.completions.create(
        model="tiny", messages=HELLO, frequency_penalty=0, extra_body={"repetition_penalty": 1}
    )
    (record,) = await live.ledger.samples([reply.choices[0].model_extra["sample_id"]])
    assert not {*PENALTIES, *OF_VLLM} & set(record.sampling)
    assert not isinstance(sampling_distribution(record, Algorithm()), Untrainable)


def _expected(live: Live, ids: list[int]) -> list[list[tuple[str, float, list[int]]]]:
    tops = [live.engine.beside(*one, 3) for one in zip(ids, live.engine.logprobs(len(ids)), strict=True)]
    spell = live.renderer.token_bytes
    return [
        [(spell(each).decode("utf-8", "replace"), value, list(spell(each))) for each, value in top]
        for top in tops
    ]


def _told(content: Any) -> list[list[tuple[str, float, list[int]]]]:
    return [[(top.token, top.logprob, top.bytes) for top in entry.top_logprobs] for entry in content]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_tells_the_most_probable_tokens(live: Live, stream: bool) -> None:
    asking: dict[str, Any] = {"model": "tiny", "messages": HELLO, "logprobs": True, "top_logprobs": 3}
    if stream:
        content = []
        async for chunk in await live.client.chat.completions.create(stream=True, **asking):
            for choice in chunk.choices:
                content += (choice.logprobs and choice.logprobs.content) or []
    else:
        reply = await live.client.chat.completions.create(**asking)
        content = reply.choices[0].logprobs.content
    (request,) = live.engine.requests
    ids = live.engine.emitted[request.request_id]
    assert len(ids) > 1 and _told(content) == _expected(live, ids)


@pytest.mark.parametrize("stream", [False, True])
async def test_raw_completions_tell_them_by_text(live: Live, stream: bool) -> None:
    asking: dict[str, Any] = {"model": "tiny", "prompt": "ab", "logprobs": 3}
    tops: list[dict[str, float]] = []
    if stream:
        async for chunk in await live.client.completions.create(stream=True, **asking):
            for choice in chunk.choices:
                tops += (choice.logprobs and choice.logprobs.top_logprobs) or []
    else:
        reply = await live.client.completions.create(**asking)
        tops = reply.choices[0].logprobs.top_logprobs
    (request,) = live.engine.requests
    expected = _expected(live, live.engine.emitted[request.request_id])
    assert [next(iter(top.items())) for top in tops] == [top[0][:2] for top in expected]
    assert all(set(top) == {text for text, _, _ in one} for top, one in zip(tops, expected, strict=True))


@pytest.mark.slow
async def test_responses_tell_them_where_logprobs_are_included(live: Live) -> None:
    reply = await live.client.responses.create(
        model="tiny", input="hi", include=INCLUDED, top_logprobs=3, temperature=0.5
    )
    (request,) = live.engine.requests
    expected = _expected(live, live.engine.emitted[request.request_id])
    assert _told(reply.output[0].content[0].logprobs) == expected and reply.top_logprobs == 3


@pytest.mark.parametrize("field", ["response_format", "guided_regex", "tool_choice"])
async def test_min_tokens_is_refused_beside_the_field_that_says_where_a_reply_ends(
    live: Live, field: str
) -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {}}}
    demands: dict[str, dict[str, Any]] = {
        "response_format": {"response_format": {"type": "json_object"}},
        "guided_regex": {"guided_regex": "a+"},
        "tool_choice": {"tool_choice": "required", "tools": [{"type": "function", "function": function}]},
    }
    body = {"min_tokens": 3, **demands[field]}
    with pytest.raises(
        openai.BadRequestError, match=f"min_tokens = 3 with {field}.*leave min_tokens out"
    ) as told:
        await live.client.chat.completions.create(model="tiny", messages=HELLO, extra_body=body)
    assert told.value.param == "min_tokens"
    free = {"min_tokens": 3, "response_format": {"type": "text"}}
    await live.client.chat.completions.create(model="tiny", messages=HELLO, extra_body=free)
