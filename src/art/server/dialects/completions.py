"""POST /v1/completions: raw prompts are continued, whole or as a stream. Each prompt x n is a sample."""

from __future__ import annotations

import codecs
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import orjson

from art.engine.protocol import Ranked, TopLogprobs
from art.errors import ARTError
from art.rendering.chat_renderer import ChatRenderer
from art.server.chat.prompt_and_reply import (
    Completion,
    partial_choice,
    prompt_logprobs_of,
    prompt_scores,
    token_spelling,
    usage_of,
)
from art.server.dialects.completion_service import (
    ChoiceFinished,
    CommittedChoice,
    CompletionService,
    ReplyDelta,
    StreamedChoice,
    StreamEvent,
    StreamStarted,
    complete_request,
    gather_or_cancel,
    stream_reply_events,
)
from art.server.dialects.completions_request import (
    CompletionsRequest,
    PreparedRawPrompt,
    RawPromptService,
    read_completions_request,
)
from art.server.dialects.dialect import (
    DONE,
    AgentDialect,
    StreamWriter,
    data_event,
    rollout_of,
    send_stream,
)
from art.server.http import Scope, Send, TenantThreads, error_body, run_in_thread_if_large, send_json
from art.server.settings import LimitSettings
from art.server.tenancy import tenant_in
from art.wire.rollouts import SAMPLE_FIELD


class TokenTexts:
    """Logprobs of one choice in OpenAI's legacy shape; `text_offset` counts characters from its beginning."""

    def __init__(self, renderer: ChatRenderer, *, start: int = 0, as_ids: bool = False) -> None:
        """`start`: characters that are told before the first token (an echoed prompt's). `as_ids`: tokens
        are called by their ids.
        """
        self._renderer = renderer
        self._as_ids = as_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = start

    def logprobs(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[float | None],
        tops: Sequence[TopLogprobs | None] = (),
    ) -> dict[str, Any]:
        """The next tokens: their texts, logprobs and places. `tops`: the alternatives of each, or none."""
        tokens, offsets = [], []
        for token_id in token_ids:
            spelled = self._renderer.token_bytes(token_id)
            tokens.append(token_spelling(token_id, spelled, self._as_ids))
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(spelled))
        return {
            "text_offset": offsets,
            "token_logprobs": list(logprobs),
            "tokens": tokens,
            "top_logprobs": [None if top is None else self._alternatives(top) for top in tops] or None,
        }

    def _alternatives(self, top: TopLogprobs) -> dict[str, float]:
        """Returns the alternatives by text: of ids with one spelling (parts of characters), the most
        probable.
        """
        known: dict[str, float] = {}
        for token_id, logprob in top:
            known.setdefault(
                token_spelling(token_id, self._renderer.token_bytes(token_id), self._as_ids), logprob
            )
        return known


class CompletionChunks:
    """Writes `text_completion` chunks."""

    def __init__(self, request: CompletionsRequest, prompts: Sequence[PreparedRawPrompt]) -> None:
        self._request = request
        self._prompts = prompts
        self._choices: list[StreamedChoice] = []
        self._texts: dict[int, TokenTexts] = {}
        self._head: dict[str, Any] = {}

    def write(self, event: StreamEvent) -> bytes:
        """A chunk for what is new of a choice; the first one of each where its prompt is told."""
        if isinstance(event, StreamStarted):
            return self._begin(event.choices)
        choice, finish, logprobs = event.choice, None, None
        token_ids: Sequence[int] = ()
        if isinstance(event, ChoiceFinished):
            finish = event.finish
        elif isinstance(event, ReplyDelta):
            token_ids = event.delta.token_ids
            if self._request.logprobs and token_ids:
                logprobs = self._texts[choice.index].logprobs(
                    token_ids, event.delta.logprobs, event.delta.top_logprobs
                )
        told_ids = self._request.sampling.return_token_ids and bool(token_ids)
        if not (event.content or finish or logprobs or told_ids):
            return b""
        piece = self._piece(choice, event.content, finish=finish, logprobs=logprobs)
        if told_ids:
            piece["token_ids"] = list(token_ids)
        return self._chunk([piece])

    def close(self) -> bytes:
        """The usage, where it was asked for."""
        if not self._request.sampling.include_usage:
            return DONE
        prompt_tokens = sum(len(prepared.stitched.prompt_ids) for prepared in self._prompts)
        usage = usage_of(prompt_tokens, [choice.completion for choice in self._choices])
        return self._chunk([], usage) + DONE

    def fail(self, error: ARTError) -> bytes:
        """The error as an event."""
        return data_event(orjson.dumps(error_body(error, self._prompts[0].tenant))) + DONE

    def _begin(self, choices: list[StreamedChoice]) -> bytes:
        first = choices[0]
        self._choices = choices
        self._head = {
            "id": f"cmpl-{first.completion.sample_id}",
            "object": "text_completion",
            "created": int(first.prepared.created_at),
            "model": first.prepared.request.model,
            "system_fingerprint": first.prepared.fingerprint,
        }
        opening = []
        for choice in choices:
            renderer, prompt_ids = choice.prepared.target.renderer, choice.prepared.stitched.prompt_ids
            text = renderer.decode(prompt_ids) if self._request.echo else ""
            self._texts[choice.index] = TokenTexts(
                renderer, start=len(text), as_ids=self._request.sampling.return_tokens_as_token_ids
            )
            piece = self._piece(choice, text)
            if self._request.sampling.return_token_ids:
                piece["prompt_token_ids"] = list(prompt_ids)
            if text or self._request.sampling.return_token_ids:
                opening.append(piece)
        return self._chunk(opening) if opening else b""

    def _piece(self, choice: StreamedChoice, text: str, **more: Any) -> dict[str, Any]:
        step = choice.prepared.target.step
        return partial_choice(choice.index, {"text": text}, completion=choice.completion, step=step, **more)

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        chunk = {**self._head, "choices": choices}
        if self._request.sampling.include_usage:
            chunk["usage"] = usage
        return data_event(orjson.dumps(chunk))


_REMEMBERED_SHARE = 8
"""The divisor of the limit of tokens remembered by stitching that gives the limit for raw prompts."""


class Completions(AgentDialect):
    """Answers completions of raw prompts, whole or streamed."""

    route = "/v1/completions"

    def __init__(
        self,
        service: CompletionService,
        limits: LimitSettings,
        threads: TenantThreads | None = None,
        counts: Counter[tuple[str, str]] | None = None,
        raw: RawPromptService | None = None,
    ) -> None:
        """raw: shared by the dialects of raw prompts, so that one goes on from what another has answered."""
        super().__init__(service, limits, threads, counts)
        self.raw = raw or RawPromptService(max_tokens=limits.remembered_tokens // _REMEMBERED_SHARE)

    def read(self, scope: Scope, body: Any) -> CompletionsRequest:
        """The request of a decoded body. Raises: RequestError."""
        return read_completions_request(body, max_n=self.limits.max_n, left_out=self.left_out)

    async def answer(self, scope: Scope, request: CompletionsRequest, send: Send) -> None:
        """Sample what is asked for."""
        target = await self.target_of(scope, request.sampling)
        rollout_id, tenant = rollout_of(scope), tenant_in(scope)
        with self.service.catalog.using(target):
            prompts = [
                await run_in_thread_if_large(
                    len(prompt),
                    self.raw.prepare,
                    request.sampling,
                    target,
                    prompt,
                    rollout_id,
                    tenant,
                    request.add_special_tokens,
                )
                for prompt in request.prompts
            ]
            if request.sampling.stream:
                events = self._remembered(stream_reply_events(self.service, *prompts))
                if await send_stream(events, self.chunks(request, prompts), send):
                    self.service.delivered(*prompts)
                return
            scores = await prompt_scores(prompts, request.scored, request.alternatives)
            if not request.samples:
                await send_json(
                    send, self.write_reply(request, prompts, [_nothing(one) for one in prompts], scores)
                )
                return
            done = await gather_or_cancel([complete_request(self.service, prepared) for prepared in prompts])
            for prepared, samples in zip(prompts, done, strict=True):
                for one in samples:
                    self.raw.remember(prepared, one.completion)
            await send_json(send, self.write_reply(request, prompts, done, scores))
            self.service.delivered(*prompts)

    def chunks(self, request: CompletionsRequest, prompts: Sequence[PreparedRawPrompt]) -> StreamWriter:
        """Returns what writes a stream."""
        return CompletionChunks(request, prompts)

    def write_reply(
        self,
        request: CompletionsRequest,
        prompts: Sequence[PreparedRawPrompt],
        done: Sequence[list[CommittedChoice]],
        scores: Sequence[Ranked | None],
    ) -> bytes:
        """Returns the whole reply."""
        choices: list[dict[str, Any]] = []
        for prepared, samples, scored in zip(prompts, done, scores, strict=True):
            choices += [
                _choice(len(choices) + at, request, prepared, one, scored) for at, one in enumerate(samples)
            ]
        first, completions = prompts[0], [one.completion for samples in done for one in samples]
        if not request.samples:
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

    async def _remembered(self, events: AsyncIterator[StreamEvent]) -> AsyncIterator[StreamEvent]:
        async with aclosing(events):  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, ChoiceFinished):
                    self.raw.remember(event.choice.prepared, event.choice.completion)
                yield event


def _nothing(prepared: PreparedRawPrompt) -> list[CommittedChoice]:
    """Returns the choices if nothing is sampled."""
    empty = Completion(sample_id="", token_ids=[], logprobs=[], finish_reason="length")
    return [CommittedChoice(empty, {"content": ""}, "length")] * prepared.request.n


def _choice(
    index: int,
    request: CompletionsRequest,
    prepared: PreparedRawPrompt,
    one: CommittedChoice,
    scored: Ranked | None,
) -> dict[str, Any]:
    renderer, prompt_ids, completion = prepared.target.renderer, prepared.stitched.prompt_ids, one.completion
    text = one.message["content"]
    if request.echo:
        text = renderer.decode(prompt_ids) + text
    choice = partial_choice(
        index,
        {"text": text},
        completion=completion,
        step=prepared.target.step,
        finish=one.finish,
        logprobs=_logprobs(request, prepared, completion, scored) if request.logprobs else None,
    )
    if not request.samples:
        del choice[SAMPLE_FIELD]  # there is none
    if request.sampling.prompt_logprobs is not None and scored is not None:
        choice["prompt_logprobs"] = prompt_logprobs_of(
            renderer, prompt_ids, scored, most=request.sampling.prompt_logprobs
        )
    if request.sampling.return_token_ids:
        choice["prompt_token_ids"] = list(prompt_ids)
        choice["token_ids"] = list(completion.token_ids)
    return choice


def _logprobs(
    request: CompletionsRequest, prepared: PreparedRawPrompt, completion: Completion, scored: Ranked | None
) -> dict[str, Any]:
    """Returns the logprobs of the sampled ids and, behind an echo, of the prompt's before them."""
    ids, values = list(completion.token_ids), list[float | None](completion.logprobs)
    tops = list[TopLogprobs | None](completion.tops)
    most = request.sampling.top_logprobs
    if request.echo and scored is not None:
        ids, values = [*prepared.stitched.prompt_ids, *ids], [None, *scored.logprobs, *values]
        if most:
            tops = [None, *(top[:most] for top in scored.tops), *tops]
    texts = TokenTexts(prepared.target.renderer, as_ids=request.sampling.return_tokens_as_token_ids)
    return texts.logprobs(ids, values, tops)
