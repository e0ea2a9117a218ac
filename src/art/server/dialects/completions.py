"""POST /v1/completions: raw prompts, continued. Each prompt x n is a sample."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import orjson

from art.server.bodies import Beside, aside
from art.server.dialects.chat_reply import partial_choice, usage_of
from art.server.dialects.chat_sampling import Sampler
from art.server.dialects.completions_reply import TokenTexts, prompt_logprobs_of
from art.server.dialects.completions_request import CompletionsRequest, read_completions_request
from art.server.dialects.completions_stream import CompletionChunks
from art.server.dialects.dialect import Dialect, rollout_of
from art.server.dialects.event_stream import stream_reply
from art.server.dialects.raw_prompts import RawPrepared, RawPrompts
from art.server.dialects.told import Ended, StreamEvent, told
from art.server.dialects.whole import Done, together, whole
from art.server.http import Scope, Send, send_json
from art.server.settings import LimitSettings
from art.server.tenants.tenancy import tenant_in

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
                    len(prompt), self._raw.prepare, asked.sampling, target, prompt, rollout_id, tenant
                )
                for prompt in asked.prompts
            ]
            if asked.sampling.stream:
                events = self._remembered(told(self.sampler, *prompts))
                if await stream_reply(events, CompletionChunks(asked, prompts), send):
                    self.sampler.delivered(*prompts)
                return
            scores = await _scores(prompts) if asked.scores_prompt else None
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


async def _scores(prompts: Sequence[RawPrepared]) -> list[list[float]]:
    """The logprobs of each prompt's own ids but the first, at temperature 1."""
    target = prompts[0].target
    rows = [prepared.stitched.prompt_ids for prepared in prompts]
    scored = iter(await target.engine.score(target.adapter, [row for row in rows if len(row) > 1]))
    return [next(scored) if len(row) > 1 else [] for row in rows]


def _reply(
    asked: CompletionsRequest,
    prompts: Sequence[RawPrepared],
    done: Sequence[list[Done]],
    scores: Sequence[list[float]] | None,
) -> bytes:
    choices: list[dict[str, Any]] = []
    for number, (prepared, samples) in enumerate(zip(prompts, done, strict=True)):
        scored = None if scores is None else scores[number]
        choices += [
            _choice(len(choices) + at, asked, prepared, one, scored) for at, one in enumerate(samples)
        ]
    first, completions = prompts[0], [one.completion for samples in done for one in samples]
    return orjson.dumps(
        {
            "id": f"cmpl-{completions[0].sample_id}",
            "object": "text_completion",
            "created": int(first.created_at),
            "model": first.request.model,
            "choices": choices,
            "usage": usage_of(sum(len(one.stitched.prompt_ids) for one in prompts), completions),
            "system_fingerprint": first.fingerprint,
        }
    )


def _choice(
    index: int, asked: CompletionsRequest, prepared: RawPrepared, one: Done, scored: list[float] | None
) -> dict[str, Any]:
    renderer, prompt_ids, completion = prepared.target.renderer, prepared.stitched.prompt_ids, one.completion
    text, logprobs = one.message["content"], None
    if asked.echo:
        text = renderer.decode(prompt_ids) + text
    if asked.logprobs:
        ids, values = completion.token_ids, list[float | None](completion.logprobs)
        if asked.echo:
            ids, values = [*prompt_ids, *ids], [None, *(scored or ()), *values]
        logprobs = TokenTexts(renderer).logprobs(ids, values, completion.tops)
    choice = partial_choice(
        index,
        {"text": text},
        completion=completion,
        step=prepared.target.step,
        finish=one.finish,
        logprobs=logprobs,
    )
    if asked.prompt_logprobs:
        choice["prompt_logprobs"] = prompt_logprobs_of(renderer, prompt_ids, scored or [])
    if asked.return_token_ids:
        choice["prompt_token_ids"] = list(prompt_ids)
        choice["token_ids"] = list(completion.token_ids)
    return choice
