"""What OpenAI's, vLLM's and Anthropic's clients send beyond what acts: taken, or refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from dialect_bodies import DIALECTS, refusal
from live import KEY, Live
from scripted_engine import Script

from art.server.chat.request_fields import OTHER_FIELDS, RequestSchema
from art.server.jobs.train_rows import sampling_distribution
from art.server.routes import openapi
from art.wire.algorithm import Algorithm
from art.wire.request_values import Idle
from art.wire.training import PLAIN_SAMPLING

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "endpoint.md"
HELLO = [{"role": "user", "content": "hi"}]
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
SAMPLING_OF_VLLM: dict[str, Any] = {
    **dict.fromkeys(
        ("frequency_penalty", "logit_bias", "presence_penalty", "seed", "stream_options", "user")
    ),
    **dict.fromkeys(("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "watermarking")),
    **dict.fromkeys(("truncate_prompt_tokens", "truncation_side", "allowed_token_ids", "prompt_logprobs")),
    **dict.fromkeys(("logprob_token_ids", "response_format", "structured_outputs", "session_id")),
    **dict.fromkeys(("return_tokens_as_token_ids", "return_token_ids", "return_mm_kwargs", "cache_salt")),
    **dict.fromkeys(("kv_transfer_params", "ec_transfer_params", "vllm_xargs", "repetition_detection")),
    **dict.fromkeys(("stream_interval", "thinking_token_budget")),
    **{"n": 1, "stop": [], "stream": False, "use_beam_search": False, "length_penalty": 1.0},
    **{"stop_token_ids": [], "include_stop_str_in_output": False, "ignore_eos": False, "min_tokens": 0},
    **{"skip_special_tokens": True, "spaces_between_special_tokens": True, "bad_words": [], "echo": False},
    **{"priority": 0, "request_id": "f00", "routed_experts_prompt_start": 0, "return_token_offsets": False},
    **{"mm_payload": "tensors"},
}
"""What `vllm.entrypoints.openai` 0.32 has where nothing is asked for: a client may dump it whole."""
OF_VLLM: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        **SAMPLING_OF_VLLM,
        **dict.fromkeys(("max_tokens", "max_completion_tokens", "tools", "reasoning_effort", "documents")),
        **dict.fromkeys(("chat_template", "chat_template_kwargs", "media_io_kwargs", "mm_processor_kwargs")),
        **dict.fromkeys(("return_prompt_text",)),
        **{"logprobs": False, "top_logprobs": 0, "tool_choice": "none", "include_reasoning": True},
        **{"parallel_tool_calls": True, "add_generation_prompt": True, "continue_final_message": False},
        **{"add_special_tokens": False},
    },
    "/v1/completions": {
        **SAMPLING_OF_VLLM,
        **dict.fromkeys(("logprobs", "suffix", "prompt_embeds")),
        **{"max_tokens": 16, "add_special_tokens": True},
    },
}


def rows_of_the_page() -> list[str]:
    part = PAGE.read_text(encoding="utf-8").partition("## Fields that do not act")[2].partition("\n## ")[0]
    return [line for line in part.splitlines() if line.startswith("| `")]


def happens(other: Idle) -> str:
    """To a value, in the words of the page."""
    if other.accepted is None:
        return "accepted, without effect"
    idle = ", ".join(f"`{json.dumps(value)}`" for value in other.accepted)
    return f"rejected, except {idle}" if idle else "rejected"


def test_the_page_says_of_each_field_what_the_table_says() -> None:
    """The rows, as they must be there."""
    told: dict[tuple[str, str], list[str]] = {}
    for name, other in OTHER_FIELDS.items():
        told.setdefault((happens(other), other.why), []).append(f"`{name}`")
    assert rows_of_the_page() == [
        f"| {', '.join(names)} | {taken} | {why} |" for (taken, why), names in told.items()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
async def test_a_null_is_a_field_that_was_not_given(live: Live, path: str) -> None:
    needed, body = DIALECTS[path], openapi.operations()["POST", path].body
    assert isinstance(body, RequestSchema)
    fields = body.schema["properties"]
    nulls = {name: None for name in fields if name not in needed}
    async with asking(live) as client:
        reply = await client.post(path, json={**needed, **nulls})
        assert reply.status_code == 200, reply.text
        plain = await client.post(path, json=needed)
    first, second = live.engine.requests
    assert first.sampling == second.sampling and list(first.prompt_ids) == list(second.prompt_ids)
    assert reply.json().keys() == plain.json().keys()


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
async def test_what_would_change_what_is_learned_is_refused_with_the_reason(live: Live, path: str) -> None:
    refused = {name: one for name, one in OTHER_FIELDS.items() if one.accepted is not None}
    async with asking(live) as client:
        for name, other in refused.items():
            reply = await client.post(path, json={**DIALECTS[path], name: "x"})
            assert reply.status_code == 400, name
            error = refusal(reply, path)
            assert error["param"] == name and other.why in error["message"]
    assert not live.engine.requests


@pytest.mark.parametrize("path", OF_VLLM)
async def test_a_request_that_dumps_vllm_s_own_defaults_is_served(live: Live, path: str) -> None:
    async with asking(live) as client:
        plain = await client.post(path, json=DIALECTS[path])
        dumped = await client.post(path, json={**OF_VLLM[path], **DIALECTS[path]})
        assert dumped.status_code == 200, dumped.text
    first, second = live.engine.requests
    assert first.sampling == second.sampling and list(first.prompt_ids) == list(second.prompt_ids)
    assert dumped.json().keys() == plain.json().keys()


async def test_what_openai_s_client_may_say_changes_nothing(live: Live) -> None:
    await live.client.chat.completions.create(
        model="tiny",
        messages=HELLO,
        reasoning_effort="low",
        verbosity="high",
        prediction={"type": "content", "content": "hello"},
        store=True,
        service_tier="flex",
        prompt_cache_key="k",
        safety_identifier="s",
        extra_body={"priority": 3, "length_penalty": 2, "skip_special_tokens": False, "cache_salt": "x"},
    )
    await live.client.chat.completions.create(model="tiny", messages=HELLO)
    first, second = live.engine.requests
    assert first.sampling == second.sampling and list(first.prompt_ids) == list(second.prompt_ids)


async def test_no_effort_is_no_thinking_where_the_format_thinks(live: Live) -> None:
    for effort in ("low", "none"):
        await live.client.chat.completions.create(model="tiny", messages=HELLO, reasoning_effort=effort)
    plain, quiet = (live.renderer.decode(request.prompt_ids) for request in live.engine.requests)
    assert quiet == plain + "<think>\n\n</think>\n\n"


AS_IDS = {"return_token_ids": True, "return_tokens_as_token_ids": True}


async def test_a_chat_tells_its_ids_as_vllm_does(live: Live) -> None:
    """The body of a published notebook, and of agent-lightning's proxy."""
    reply = await live.client.chat.completions.create(
        model="tiny", messages=HELLO, logprobs=True, top_logprobs=2, n=2, extra_body=AS_IDS
    )
    prompt = live.renderer.render(HELLO, None)
    ids = live.renderer.encode("hello<|im_end|>")
    assert reply.model_extra["prompt_token_ids"] == prompt
    for choice in reply.choices:
        assert choice.model_extra["token_ids"] == ids
        assert [one.token for one in choice.logprobs.content] == [f"token_id:{one}" for one in ids]
        assert choice.logprobs.content[0].bytes == list(b"hello")
        beside = [top.token for top in choice.logprobs.content[0].top_logprobs]
        assert beside == [f"token_id:{ids[0]}", f"token_id:{ids[0] + 1}"]


async def test_a_stream_tells_its_ids_as_vllm_does(live: Live) -> None:
    live.engine.answer = lambda request: Script(ids=live.renderer.encode("some longer text<|im_end|>"))
    stream = await live.client.chat.completions.create(
        model="tiny", messages=HELLO, logprobs=True, stream=True, extra_body=AS_IDS
    )
    chunks = [chunk async for chunk in stream]
    prompts = [
        chunk.model_extra["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk.model_extra
    ]
    parts = [choice for chunk in chunks for choice in chunk.choices]
    ids = [one for part in parts for one in (part.model_extra.get("token_ids") or ())]
    tokens = [one.token for part in parts if part.logprobs for one in part.logprobs.content]
    assert prompts == [live.renderer.render(HELLO, None)]
    assert ids == live.renderer.encode("some longer text<|im_end|>")
    assert tokens == [f"token_id:{one}" for one in ids]


async def test_a_chat_tells_its_prompt_s_logprobs(live: Live) -> None:
    for most in (0, 2):
        reply = await live.client.chat.completions.create(
            model="tiny", messages=HELLO, extra_body={"prompt_logprobs": most}
        )
        prompt = live.renderer.render(HELLO, None)
        first, *told = reply.model_extra["prompt_logprobs"]
        assert first is None and len(told) == len(prompt) - 1
        for token, score, at in zip(prompt[1:], live.engine.logprobs(len(prompt) - 1), told, strict=True):
            assert len(at) == max(most, 1) and at[str(token)]["logprob"] == score


async def test_a_stop_string_may_be_told(live: Live) -> None:
    live.engine.answer = lambda request: Script(
        ids=live.renderer.encode("one;two"), stop_string=";", chunk=99
    )
    kept = {"stop": ";", "extra_body": {"include_stop_str_in_output": True}}
    whole = await live.client.chat.completions.create(model="tiny", messages=HELLO, **kept)
    assert whole.choices[0].message.content == "one;"
    raw = await live.client.completions.create(model="tiny", prompt="x", **kept)
    assert raw.choices[0].text == "one;"
    text = ""
    async for chunk in await live.client.chat.completions.create(
        model="tiny", messages=HELLO, stream=True, **kept
    ):
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert text == "one;"


async def test_special_tokens_around_a_text_are_the_tokenizer_s(live: Live) -> None:
    """This tokenizer has none to add: the ids are those of the text."""
    for asked in (True, False):
        await live.client.completions.create(
            model="tiny", prompt="ab", extra_body={"add_special_tokens": asked}
        )
    first, second = live.engine.requests
    assert list(first.prompt_ids) == list(second.prompt_ids) == live.renderer.encode("ab")


async def test_the_end_of_a_turn_may_be_ignored_and_is_trained_as_it_was_drawn(live: Live) -> None:
    """vLLM's words: end-of-sequence is sampled like any other id, and the reply goes on."""
    live.engine.answer = lambda request: Script(ids=live.renderer.encode("one<|im_end|>two"), chunk=9)
    asked = {"max_tokens": 2, "extra_body": {"ignore_eos": True}}
    chat = await live.client.chat.completions.create(model="tiny", messages=HELLO, **asked)
    raw = await live.client.completions.create(model="tiny", prompt="x", **asked)
    assert [request.sampling.stop_token_ids for request in live.engine.requests] == [(), ()]
    for choice in (chat.choices[0], raw.choices[0]):
        (record,) = await live.ledger.samples([choice.model_extra["sample_id"]])
        assert choice.finish_reason == "length" and record.sampling["ignore_eos"] is True
        assert sampling_distribution(record, Algorithm()) == PLAIN_SAMPLING
    await live.client.completions.create(
        model="tiny", prompt="x", extra_body={"ignore_eos": True, "stop_token_ids": [7]}
    )
    assert live.engine.requests[-1].sampling.stop_token_ids == (7,), "what is named ends it"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_the_body_of_vllm_s_load_tool_is_served(live: Live, path: str) -> None:
    """What `vllm bench serve` 0.32 sends for random data (vllm/benchmarks/lib/endpoint_request_func.py)."""
    body: dict[str, Any] = {"model": "tiny", "stream": True, "stream_options": {"include_usage": True}}
    if path == "/v1/completions":
        body |= {"prompt": "ab", "repetition_penalty": 1.0, "max_tokens": 5, "logprobs": None}
    else:
        body |= {"messages": [{"role": "user", "content": [{"type": "text", "text": "ab"}]}]}
        body |= {"max_completion_tokens": 5}
    async with asking(live) as client:
        reply = await client.post(path, json={**body, "ignore_eos": True, "temperature": 0.0})
    assert reply.status_code == 200 and '"completion_tokens":2' in reply.text, reply.text


@pytest.mark.extension
async def test_name_step_means_the_step_in_every_dialect(live: Live) -> None:
    """As upstream's servers spell it."""
    async with asking(live) as client:
        for path, body in DIALECTS.items():
            for name in ("player:step3", "games/player:step3"):
                reply = await client.post(path, json={**body, "model": name})
                assert reply.status_code == 200, reply.text
        for unknown in ("player:step", "player:stepx", "player@3:step3", "tiny:step3"):
            reply = await client.post("/v1/completions", json={"model": unknown, "prompt": "x"})
            assert reply.status_code == 404, unknown
    assert {request.adapter for request in live.engine.requests} == {"games/player@3"}
    found = await live.client.models.retrieve("player:step3")
    assert (found.id, found.model_extra["step"]) == ("player@3", 3)
    with pytest.raises(openai.NotFoundError):
        await live.client.models.retrieve("player:step4")


def asking(live: Live) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=live.url, headers={"authorization": f"Bearer {KEY}"}, timeout=240)
