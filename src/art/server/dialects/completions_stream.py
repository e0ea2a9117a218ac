"""Completions of raw prompts as server-sent events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from art.errors import ARTError
from art.server.dialects.chat_reply import partial_choice, usage_of
from art.server.dialects.completions_reply import TokenTexts
from art.server.dialects.completions_request import CompletionsRequest
from art.server.dialects.event_stream import data
from art.server.dialects.raw_prompts import RawPrepared
from art.server.dialects.told import Begun, Ended, StreamedChoice, StreamEvent, Told
from art.server.http import error_body

_DONE = data(b"[DONE]")


class CompletionChunks:
    """Writes `text_completion` chunks."""

    def __init__(self, asked: CompletionsRequest, prompts: Sequence[RawPrepared]) -> None:
        self._asked = asked
        self._prompts = prompts
        self._choices: list[StreamedChoice] = []
        self._texts: dict[int, TokenTexts] = {}
        self._head: dict[str, Any] = {}

    def write(self, event: StreamEvent) -> bytes:
        """A chunk for what is new of a choice; the first one of each where its prompt is told."""
        if isinstance(event, Begun):
            return self._begin(event.choices)
        choice, finish, logprobs = event.choice, None, None
        token_ids: Sequence[int] = ()
        if isinstance(event, Ended):
            finish = event.finish
        elif isinstance(event, Told):
            token_ids = event.delta.token_ids
            if self._asked.logprobs and token_ids:
                logprobs = self._texts[choice.index].logprobs(
                    token_ids, event.delta.logprobs, event.delta.top_logprobs
                )
        told_ids = self._asked.sampling.return_token_ids and bool(token_ids)
        if not (event.content or finish or logprobs or told_ids):
            return b""
        piece = self._piece(choice, event.content, finish=finish, logprobs=logprobs)
        if told_ids:
            piece["token_ids"] = list(token_ids)
        return self._chunk([piece])

    def close(self) -> bytes:
        """The usage, where it was asked for."""
        if not self._asked.sampling.include_usage:
            return _DONE
        prompt_tokens = sum(len(prepared.stitched.prompt_ids) for prepared in self._prompts)
        usage = usage_of(prompt_tokens, [choice.completion for choice in self._choices])
        return self._chunk([], usage) + _DONE

    def fail(self, error: ARTError) -> bytes:
        """The error as an event."""
        return data(orjson.dumps(error_body(error, self._prompts[0].tenant))) + _DONE

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
            text = renderer.decode(prompt_ids) if self._asked.echo else ""
            self._texts[choice.index] = TokenTexts(
                renderer, start=len(text), as_ids=self._asked.sampling.tokens_as_ids
            )
            piece = self._piece(choice, text)
            if self._asked.sampling.return_token_ids:
                piece["prompt_token_ids"] = list(prompt_ids)
            if text or self._asked.sampling.return_token_ids:
                opening.append(piece)
        return self._chunk(opening) if opening else b""

    def _piece(
        self,
        choice: StreamedChoice,
        text: str,
        *,
        finish: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        return partial_choice(
            choice.index,
            {"text": text},
            completion=choice.completion,
            step=choice.prepared.target.step,
            finish=finish,
            logprobs=logprobs,
        )

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        chunk = {**self._head, "choices": choices}
        if self._asked.sampling.include_usage:
            chunk["usage"] = usage
        return data(orjson.dumps(chunk))
