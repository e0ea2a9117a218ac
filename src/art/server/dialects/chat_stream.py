"""A chat completion's chunks."""

from __future__ import annotations

from typing import Any

import orjson

from art.errors import ARTError
from art.server.dialects.chat_prepared import Prepared
from art.server.dialects.chat_reply import logprobs_of, partial_choice, usage_of
from art.server.dialects.event_stream import data
from art.server.dialects.told import Begun, CallPiece, Ended, StreamedChoice, StreamEvent, Told
from art.server.http import error_body

_DONE = data(b"[DONE]")


class ChatChunks:
    """Writes `chat.completion.chunk`s."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._choices: list[StreamedChoice] = []
        self._head: dict[str, Any] = {}

    def write(self, event: StreamEvent) -> bytes:
        """A chunk for what is new of a choice; all choices open in one."""
        if isinstance(event, Begun):
            self._choices = event.choices
            self._head = self._begin(event.choices[0].completion.sample_id)
            opening = {"role": "assistant", "content": ""}
            first = [self._choice(choice, opening) for choice in event.choices]
            if not self._prepared.request.return_token_ids:
                return self._chunk(first)
            return self._chunk(first, prompt_token_ids=list(self._prepared.stitched.prompt_ids))
        if isinstance(event, Told):
            change, logprobs = _change(event), None
            if event.calls:
                change["tool_calls"] = [_of_call(piece) for piece in event.calls]
            if self._prepared.request.logprobs and event.delta.token_ids:
                renderer = self._prepared.target.renderer
                logprobs = logprobs_of(
                    renderer,
                    event.delta.token_ids,
                    event.delta.logprobs,
                    event.delta.top_logprobs,
                    as_ids=self._prepared.request.tokens_as_ids,
                )
            ids = list(event.delta.token_ids) if self._prepared.request.return_token_ids else []
            if not change and logprobs is None and not ids:
                return b""
            part = self._choice(event.choice, change, logprobs=logprobs)
            return self._chunk([{**part, "token_ids": ids} if ids else part])
        return self._end(event)

    def close(self) -> bytes:
        """The usage, where it was asked for."""
        if not self._prepared.request.include_usage:
            return _DONE
        prompt_tokens = len(self._prepared.stitched.prompt_ids)
        return self._chunk([], usage_of(prompt_tokens, [c.completion for c in self._choices])) + _DONE

    def fail(self, error: ARTError) -> bytes:
        """The error as an event."""
        return data(orjson.dumps(error_body(error, self._prepared.tenant))) + _DONE

    def _begin(self, first_sample: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{first_sample}",
            "object": "chat.completion.chunk",
            "created": int(self._prepared.created_at),
            "model": self._prepared.request.model,
            "system_fingerprint": self._prepared.fingerprint,
        }

    def _end(self, event: Ended) -> bytes:
        choice, change = event.choice, _change(event)
        parts = [self._choice(choice, change)] if change else []
        parts += [self._choice(choice, {"tool_calls": [_of_call(piece)]}) for piece in event.calls]
        parts.append(self._choice(choice, {}, finish=event.finish))
        return b"".join(self._chunk([part]) for part in parts)

    def _choice(
        self,
        choice: StreamedChoice,
        delta: dict[str, Any],
        *,
        finish: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        return partial_choice(
            choice.index,
            {"delta": delta},
            completion=choice.completion,
            step=self._prepared.target.step,
            finish=finish,
            logprobs=logprobs,
        )

    def _chunk(
        self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None, **further: Any
    ) -> bytes:
        chunk: dict[str, Any] = {**self._head, "choices": choices, **further}
        if self._prepared.request.include_usage:
            chunk["usage"] = usage
        return data(orjson.dumps(chunk))


def _of_call(piece: CallPiece) -> dict[str, Any]:
    if not piece.opens:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    function = {**piece.call["function"], "arguments": piece.arguments}
    return {"index": piece.index, **piece.call, "function": function}


def _change(event: Told | Ended) -> dict[str, Any]:
    change: dict[str, Any] = {}
    if event.reasoning:
        change["reasoning_content"] = event.reasoning
    if event.content:
        change["content"] = event.content
    return change
