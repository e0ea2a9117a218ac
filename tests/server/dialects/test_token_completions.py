"""Ids in, ids out: through `renderers.client.generate`, with which verifiers trains, and as vLLM says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import orjson
import pytest
from live import KEY, Live
from renderers.client import OverlongPromptError, generate
from scripted_engine import Script

import art

PATH = "/inference/v1/generate"


@pytest.fixture
async def http(live: Live) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=live.url, headers=headers, timeout=60) as client:
        yield client


def says(live: Live, text: str, **more: Any) -> list[int]:
    """Let the engine answer with the ids of a text, which are returned."""
    ids = live.renderer.encode(text)
    live.engine.answer = lambda request: Script(ids=ids, **more)
    return ids


async def test_a_client_that_renders_by_itself_is_answered_and_recorded_exactly(live: Live) -> None:
    """Two turns of a scoped rollout: the second prompt is the first one's ids and more."""
    model = art.TrainableModel(name="player", project="games", base_model="tiny")
    model.inference_base_url, model.inference_api_key = f"{live.url}/v1", KEY
    backend = art.RemoteBackend(live.url, KEY)
    model._backend = backend
    messages: list[Any] = [{"role": "user", "content": "hello there"}]
    renderer = live.renderer._renderer
    async with art.rollout(model) as r:
        async with openai.AsyncOpenAI(base_url=r.base_url, api_key=r.api_key, max_retries=0) as client:
            asked = {"client": client, "renderer": renderer, "model": "player"}
            first = await generate(
                **asked, messages=messages, sampling_params={"temperature": 0.5, "max_tokens": 30}
            )
            longer = [
                *first["prompt_ids"],
                *first["completion_ids"],
                *live.renderer.encode("\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"),
            ]
            second = await generate(**asked, messages=messages, prompt_ids=longer)
        rollout = r.rollout_id
    await backend.close()
    assert first["content"] == "hello" and first["finish_reason"] == "stop"
    assert first["completion_logprobs"] == live.engine.logprobs(len(first["completion_ids"]))
    one, two = await live.ledger.rollout(rollout)
    for record, told in ((one, first), (two, second)):
        assert list(record.prompt_ids) == told["prompt_ids"]
        assert list(record.completion_ids) == told["completion_ids"]
        assert list(record.completion_logprobs) == pytest.approx(told["completion_logprobs"])
        assert record.adapter == "games/player@3"
    assert two.parent_id == one.sample_id
    asked_first, asked_second = (request.sampling for request in live.engine.requests)
    assert (asked_first.temperature, asked_first.max_tokens) == (0.5, 30)
    assert asked_second.max_tokens == 4096 - len(longer)


async def test_a_prompt_without_room_is_not_even_sent(live: Live) -> None:
    with pytest.raises(OverlongPromptError, match="4096"):
        await generate(
            client=live.client,
            renderer=live.renderer._renderer,
            model="player",
            messages=[],
            prompt_ids=[1] * 5000,
        )
    assert not live.engine.requests


async def test_each_choice_is_a_sample_with_ids_logprobs_and_usage(
    live: Live, http: httpx.AsyncClient
) -> None:
    ids, prompt = says(live, "é!<|im_end|>"), live.renderer.encode("ab")
    told = {"model": "player", "token_ids": prompt, "return_token_ids": True}
    sampling = {"n": 2, "logprobs": 2, "prompt_logprobs": 0, "seed": 7, "skip_special_tokens": False}
    reply = (await http.post(PATH, json={**told, "sampling_params": sampling})).json()
    assert reply["prompt_token_ids"] == prompt and reply["output_mode"] == "tokens"
    assert len(reply["prompt_logprobs"]) == len(prompt) and reply["prompt_logprobs"][0] is None
    assert [choice["index"] for choice in reply["choices"]] == [0, 1]
    logprobs = live.engine.logprobs(len(ids))
    for choice in reply["choices"]:
        (record,) = await live.ledger.samples([choice["sample_id"]])
        assert choice["token_ids"] == ids == list(record.completion_ids)
        content = choice["logprobs"]["content"]
        assert [(one["token_id"], one["token"], one["logprob"]) for one in content] == [
            (token, f"token_id:{token}", logprob) for token, logprob in zip(ids, logprobs, strict=True)
        ]
        beside = live.engine.beside(ids[0], logprobs[0], 2)
        assert [(one["token_id"], one["logprob"]) for one in content[0]["top_logprobs"]] == beside
        assert (choice["finish_reason"], choice["stop_reason"], choice["step"]) == ("stop", None, 3)
    used = {"prompt_tokens": len(prompt), "completion_tokens": 2 * len(ids)}
    assert reply["usage"] == {**used, "total_tokens": sum(used.values())}


async def test_other_ids_of_the_prompt_are_told(live: Live, http: httpx.AsyncClient) -> None:
    says(live, "yes<|im_end|>")
    prompt = live.renderer.encode("abc")
    asked = {"ids": [[2, 5], [1, 3]], "draws": 2, "temperature": 0.5, "seed": 4}
    told = {"model": "player", "token_ids": prompt, "sampling_params": {"prompt_alternatives": asked}}
    reply = (await http.post(PATH, json=told)).json()
    drawn = [[[7, -0.5], [7, -0.5]]] * (len(prompt) - 1)
    assert reply["prompt_alternatives"] == {"logprobs": [-5.0, -3.0], "draws": drawn}
    assert len(reply["prompt_logprobs"]) == len(prompt)
    streamed = await http.post(PATH, json={**told, "stream": True})
    assert streamed.status_code == 400 and "stream" in streamed.text


async def test_what_ended_a_completion_is_told(live: Live, http: httpx.AsyncClient) -> None:
    async def reason(**sampling: Any) -> tuple[str, Any]:
        body = {"model": "tiny", "token_ids": [1], "sampling_params": sampling}
        (choice,) = (await http.post(PATH, json=body)).json()["choices"]
        return choice["finish_reason"], choice["stop_reason"]

    ids = says(live, "one;", stop_string=";")
    assert await reason(stop=[";"]) == ("stop", ";")
    says(live, "")
    assert await reason() == ("stop", None)
    says(live, "one;")
    assert await reason(max_tokens=1) == ("length", None)
    assert await reason(stop_token_ids=[ids[-1]]) == ("stop", ids[-1])


@pytest.mark.parametrize("more", [{}, {"stream_options": {"include_usage": True}, "return_token_ids": True}])
async def test_a_stream_adds_up_to_the_whole_reply(
    live: Live, http: httpx.AsyncClient, more: dict[str, Any]
) -> None:
    ids, prompt = says(live, "hello there<|im_end|>"), live.renderer.encode("ab")
    told = {"model": "player", "token_ids": prompt, "sampling_params": {"logprobs": 0}, "stream": True}
    reply = await http.post(PATH, json={**told, **more})
    *chunks, done = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    events = [orjson.loads(chunk) for chunk in chunks]
    pieces = [piece for event in events for piece in event["choices"]]
    assert done == "[DONE]"
    assert [token for piece in pieces for token in piece["token_ids"]] == ids
    content = [one for piece in pieces for one in (piece["logprobs"] or {"content": []})["content"]]
    assert [one["logprob"] for one in content] == live.engine.logprobs(len(ids))
    assert [piece["finish_reason"] for piece in pieces][-1] == "stop"
    (record,) = await live.ledger.samples([pieces[-1]["sample_id"]])
    assert list(record.completion_ids) == ids
    if more:
        assert events[0]["prompt_token_ids"] == prompt
        assert events[-1]["usage"]["completion_tokens"] == len(ids)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [1, -1]}, "token_ids"),
        ({"token_ids": "ab"}, "token_ids"),
        ({"sampling_params": [1]}, "sampling_params"),
        ({"sampling_params": {"temperature": "hot"}}, "temperature"),
        ({"sampling_params": {"messages": []}}, "messages"),
        ({"sampling_params": {"allowed_token_ids": [1]}}, "allowed_token_ids"),
        ({"sampling_params": {"prompt_alternatives": {"ids": [[1]]}}}, "prompt_alternatives"),
        ({"sampling_params": {"prompt_alternatives": {"draws": -1}}}, "prompt_alternatives"),
        ({"features": {"mm_hashes": {}}}, "features"),
        ({"content_parts": [{"type": "image_url"}]}, "content_parts"),
        ({"output_mode": "text"}, "output_mode"),
        ({"prompt": "ab"}, "prompt"),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(
    live: Live, http: httpx.AsyncClient, changes: dict[str, Any], param: str
) -> None:
    reply = await http.post(PATH, json={"model": "tiny", "token_ids": [1], **changes})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text
    assert not live.engine.requests
