"""POST /v1/completions: raw prompts, continued. Each prompt x n is a sample."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import orjson

from art.engine.protocol import Ranked, TopLogprobs
from art.server.bodies import Beside, aside
from art.server.dialects.chat_reply import Completion, partial_choice, usage_of
from art.server.dialects.chat_sampling import Sampler
from art.server.dialects.completions_reply import TokenTexts
from art.server.dialects.completions_request import CompletionsRequest, read_completions_request
from art.server.dialects.completions_stream import CompletionChunks
from art.server.dialects.dialect import Dialect, rollout_of
from art.server.dialects.event_stream import stream_reply
from art.server.dialects.prompt_scores import prompt_logprobs_of, prompt_scores
from art.server.dialects.raw_prompts import RawPrepared, RawPrompts
from art.server.dialects.told import Ended, StreamEvent, told
from art.server.dialects.whole import Done, together, whole
from art.server.http import Scope, Send, send_json
from art.server.settings import LimitSettings
from art.server.tenants.tenancy import tenant_in
from art.wire.headers import SAMPLE_FIELD

_REMEMBERED_SHARE = 8
"""So small a share of what stitching may remember is for raw prompts."""


class Completions(Dialect):
    """Answers completions of raw prompts, whole or streamed."""

    def __init__(self, sampler: Sampler, limits: LimitSettings, beside: Beside | None = None) -> None:
        super().__init__(sampler, limits, beside)
        self._raw = RawPrompts(max_tokens=limits.remembered_tokens // _REMEMBERED_SHARE)

    def read(self, scope: Scope, body: Any) -> CompletionsRequest:
        """The request of a decoded body. Raises: RequestError."""
        return read_completions_request(body, max_n=self.limits.max_n)

    async def answer(self, scope: Scope, asked: CompletionsRequest, send: Send) -> None:
        """Sample what is asked for."""
        target = await self.target_of(scope, asked.sampling)
        rollout_id, tenant = rollout_of(scope), tenant_in(scope)
        async with self.sampler.catalog.lease(target):
            prompts = [
                await aside(
                    len(prompt),
                    self._raw.prepare,
                    asked.sampling,
                    target,
                    prompt,
                    rollout_id,
                    tenant,
                    asked.special_tokens,
                )
                for prompt in asked.prompts
            ]
            if asked.sampling.stream:
                events = self._remembered(told(self.sampler, *prompts))
                if await stream_reply(events, CompletionChunks(asked, prompts), send):
                    self.sampler.delivered(*prompts)
                return
            scores = await prompt_scores(prompts, asked.scored)
            if not asked.samples:
                await send_json(send, _reply(asked, prompts, [_nothing(one) for one in prompts], scores))
                return
            done = await together([whole(self.sampler, prepared) for prepared in prompts])
            for prepared, samples in zip(prompts, done, strict=True):
                for one in samples:
                    self._raw.remember(prepared, one.completion)
            await send_json(send, _reply(asked, prompts, done, scores))
            self.sampler.delivered(*prompts)

    async def _remembered(self, events: AsyncIterator[StreamEvent]) -> AsyncIterator[StreamEvent]:
        async with aclosing(events):  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, Ended):
                    self._raw.remember(event.choice.prepared, event.choice.completion)
                yield event


def _nothing(prepared: RawPrepared) -> list[Done]:
    """Its choices where nothing is sampled."""
    empty = Completion(sample_id="", token_ids=[], logprobs=[], finish_reason="length")
    return [Done(empty, {"content": ""}, "length")] * prepared.request.n


def _reply(
    asked: CompletionsRequest,
    prompts: Sequence[RawPrepared],
    done: Sequence[list[Done]],
    scores: Sequence[Ranked | None],
) -> bytes:
    choices: list[dict[str, Any]] = []
    for prepared, samples, scored in zip(prompts, done, scores, strict=True):
        choices += [
            _choice(len(choices) + at, asked, prepared, one, scored) for at, one in enumerate(samples)
        ]
    first, completions = prompts[0], [one.completion for samples in done for one in samples]
    if not asked.samples:
        completions = []
    return orjson.dumps(
        {
            "id": f"cmpl-{completions[0].sample_id if completions else secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(first.created_at),
            "model": first.request.model,
            "choices": choices,
            "usage": usage_of(sum(len(one.stitched.prompt_ids) for one in prompts), completions),
            "system_fingerprint": first.fingerprint,
        }
    )


def _choice(
    index: int, asked: CompletionsRequest, prepared: RawPrepared, one: Done, scored: Ranked | None
) -> dict[str, Any]:
    renderer, prompt_ids, completion = prepared.target.renderer, prepared.stitched.prompt_ids, one.completion
    text = one.message["content"]
    if asked.echo:
        text = renderer.decode(prompt_ids) + text
    choice = partial_choice(
        index,
        {"text": text},
        completion=completion,
        step=prepared.target.step,
        finish=one.finish,
        logprobs=_logprobs(asked, prepared, completion, scored) if asked.logprobs else None,
    )
    if not asked.samples:
        del choice[SAMPLE_FIELD]  # there is none
    if asked.sampling.prompt_logprobs is not None and scored is not None:
        choice["prompt_logprobs"] = prompt_logprobs_of(
            renderer, prompt_ids, scored, most=asked.sampling.prompt_logprobs
        )
    if asked.sampling.return_token_ids:
        choice["prompt_token_ids"] = list(prompt_ids)
        choice["token_ids"] = list(completion.token_ids)
    return choice


def _logprobs(
    asked: CompletionsRequest, prepared: RawPrepared, completion: Completion, scored: Ranked | None
) -> dict[str, Any]:
    """Of the sampled ids and, behind an echo, of the prompt's before them."""
    ids, values = list(completion.token_ids), list[float | None](completion.logprobs)
    tops = list[TopLogprobs | None](completion.tops)
    most = asked.sampling.top_logprobs
    if asked.echo and scored is not None:
        ids, values = [*prepared.stitched.prompt_ids, *ids], [None, *scored.logprobs, *values]
        if most:
            tops = [None, *(top[:most] for top in scored.tops), *tops]
    texts = TokenTexts(prepared.target.renderer, as_ids=asked.sampling.tokens_as_ids)
    return texts.logprobs(ids, values, tops)
