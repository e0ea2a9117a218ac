"""What lm-evaluation-harness asks and reads: log-likelihoods of texts through `/v1/completions`.

The parsers are those of `lm_eval/models/openai_completions.py` (0.4), written down in few lines.
"""

from __future__ import annotations

from typing import Any

import pytest
from live import Live
from scripted_engine import Script

from art.engine.protocol import Ranked


def as_lm_eval_reads(reply: dict[str, Any], context: int) -> tuple[float, bool]:
    """The log-likelihood of what follows `context` tokens, and whether greedy decoding would say it."""
    told = reply["choices"][0]["logprobs"]
    own, best = told["token_logprobs"][context:-1], told["top_logprobs"][context:-1]
    return sum(own), all(one == max(top.values()) for one, top in zip(own, best, strict=True))


def likelihood_body(ids: list[int]) -> dict[str, Any]:
    """`create_message` and `_create_payload` of `LocalCompletionsAPI`, without `generate`."""
    return {
        "model": "tiny",
        "prompt": [ids],
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": 1,
        "seed": 1234,
        "extra_body": {"echo": True},
    }


@pytest.mark.parametrize("greedy", [True, False])
async def test_a_log_likelihood_is_read(live: Live, greedy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    live.engine.answer = lambda request: Script(ids=live.renderer.encode("!more"))
    if not greedy:

        async def rank(adapter: str | None, rows: Any, most: int, alternatives: None) -> list[Ranked]:
            """Another id is more probable at the last place."""
            (row,) = rows
            scores = live.engine.logprobs(len(row) - 1)
            tops = [[(token, score)] for token, score in zip(row[1:], scores, strict=True)]
            return [Ranked(logprobs=scores, tops=[*tops[:-1], [(3, -0.001)]])]

        monkeypatch.setattr(live.engine, "rank", rank)
    ids = live.renderer.encode("question answer")
    reply = await live.client.completions.create(**likelihood_body(ids))
    scores = live.engine.logprobs(len(ids) - 1)
    assert as_lm_eval_reads(reply.model_dump(), len(ids) - 3) == (sum(scores[-3:]), greedy)
    told = reply.choices[0].logprobs
    assert told.token_logprobs[0] is None and told.top_logprobs[0] is None
    assert len(told.tokens) == len(told.top_logprobs) == len(told.text_offset) == len(ids) + 1
    assert "".join(told.tokens[:-1]) == "question answer" and told.text_offset[-1] == len("question answer")


async def test_nothing_need_be_sampled(live: Live) -> None:
    """`max_tokens` 0, as older harnesses ask: the reply names no sample, for there is none."""
    body = {**likelihood_body(live.renderer.encode("ab")), "max_tokens": 0, "n": 2}
    reply = await live.client.completions.create(**body)
    assert not live.engine.requests and reply.usage.completion_tokens == 0
    assert [choice.text for choice in reply.choices] == ["ab", "ab"]
    for choice in reply.choices:
        assert choice.logprobs.token_logprobs == [None, *live.engine.logprobs(1)]
        assert choice.finish_reason == "length" and "sample_id" not in choice.model_extra


async def test_several_prompts_are_told_apart(live: Live) -> None:
    texts = ["ab", "c", "def"]
    prompts = [live.renderer.encode(text) for text in texts]
    reply = await live.client.completions.create(**{**likelihood_body([]), "prompt": prompts})
    for text, ids, choice in zip(texts, prompts, reply.choices, strict=True):
        assert choice.text == f"{text}hello"
        assert choice.logprobs.token_logprobs[1:-1] == live.engine.logprobs(len(ids) - 1)
        assert len(choice.logprobs.top_logprobs) == len(ids) + 1


async def test_more_of_the_prompt_may_be_told_as_vllm_does(live: Live) -> None:
    """`prompt_logprobs` beside `echo`: each has as many as it asked for."""
    ids = live.renderer.encode("abc")
    body = {**likelihood_body(ids), "extra_body": {"echo": True, "prompt_logprobs": 3}}
    (choice,) = (await live.client.completions.create(**body)).choices
    assert [len(top) for top in choice.logprobs.top_logprobs[1:]] == [1, 1, 1]
    assert [len(at) for at in choice.model_extra["prompt_logprobs"][1:]] == [3, 3]
    best = choice.model_extra["prompt_logprobs"][1][str(ids[1])]
    assert best["rank"] == 1 and best["decoded_token"] == "b"
