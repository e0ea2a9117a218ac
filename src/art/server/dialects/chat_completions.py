"""POST /v1/chat/completions: whole replies, and chunks of a stream."""

from __future__ import annotations

from typing import Any

import orjson

from art.engine.protocol import Ranked
from art.errors import ARTError
from art.server.chat.chat_request import ChatRequest, read_chat_request
from art.server.chat.prompt_and_reply import (
    PreparedRequest,
    choice_of,
    logprobs_of,
    partial_choice,
    prompt_logprobs_of,
    prompt_scores,
    usage_of,
)
from art.server.dialects.completion_service import (
    CallPiece,
    ChoiceFinished,
    CommittedChoice,
    ReplyDelta,
    StreamedChoice,
    StreamEvent,
    StreamStarted,
    complete_request,
    stream_reply_events,
)
from art.server.dialects.dialect import DONE, AgentDialect, data_event, send_stream
from art.server.http import Scope, Send, error_body, send_json


class ChatChunks:
    """Writes `chat.completion.chunk`s."""

    def __init__(self, prepared: PreparedRequest) -> None:
        self._prepared = prepared
        self._choices: list[StreamedChoice] = []
        self._head: dict[str, Any] = {}

    def write(self, event: StreamEvent) -> bytes:
        """A chunk for what is new of a choice; all choices open in one."""
        if isinstance(event, StreamStarted):
            self._choices = event.choices
            self._head = self._begin(event.choices[0].completion.sample_id)
            opening = {"role": "assistant", "content": ""}
            first = [self._choice(choice, opening) for choice in event.choices]
            if not self._prepared.request.return_token_ids:
                return self._chunk(first)
            return self._chunk(first, prompt_token_ids=self._prepared.shown_prompt_ids)
        if isinstance(event, ReplyDelta):
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
                    as_ids=self._prepared.request.return_tokens_as_token_ids,
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
            return DONE
        prompt_tokens = len(self._prepared.stitched.prompt_ids)
        return self._chunk([], usage_of(prompt_tokens, [c.completion for c in self._choices])) + DONE

    def fail(self, error: ARTError) -> bytes:
        """The error as an event."""
        return data_event(orjson.dumps(error_body(error, self._prepared.tenant))) + DONE

    def _begin(self, first_sample: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{first_sample}",
            "object": "chat.completion.chunk",
            "created": int(self._prepared.created_at),
            "model": self._prepared.request.model,
            "system_fingerprint": self._prepared.fingerprint,
        }

    def _end(self, event: ChoiceFinished) -> bytes:
        choice, change = event.choice, _change(event)
        parts = [self._choice(choice, change)] if change else []
        parts += [self._choice(choice, {"tool_calls": [_of_call(piece)]}) for piece in event.calls]
        parts.append(self._choice(choice, {}, finish=event.finish))
        return b"".join(self._chunk([part]) for part in parts)

    def _choice(self, choice: StreamedChoice, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        step = self._prepared.target.step
        return partial_choice(choice.index, {"delta": delta}, completion=choice.completion, step=step, **more)

    def _chunk(
        self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None, **further: Any
    ) -> bytes:
        chunk: dict[str, Any] = {**self._head, "choices": choices, **further}
        if self._prepared.request.include_usage:
            chunk["usage"] = usage
        return data_event(orjson.dumps(chunk))


def _of_call(piece: CallPiece) -> dict[str, Any]:
    if not piece.opens:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    function = {**piece.call["function"], "arguments": piece.arguments}
    return {"index": piece.index, **piece.call, "function": function}


def _change(event: ReplyDelta | ChoiceFinished) -> dict[str, Any]:
    change: dict[str, Any] = {}
    if event.reasoning:
        change["reasoning_content"] = event.reasoning
    if event.content:
        change["content"] = event.content
    return change


class ChatCompletions(AgentDialect):
    """Answers chat completions, whole or streamed."""

    route = "/v1/chat/completions"

    def read(self, scope: Scope, body: Any) -> ChatRequest:
        """The request of a decoded body. Raises: RequestError."""
        return read_chat_request(body, max_n=self.limits.max_n, left_out=self.left_out)

    async def answer(self, scope: Scope, request: ChatRequest, send: Send) -> None:
        """Sample what is asked for."""
        target = await self.target_of(scope, request)
        with self.service.catalog.using(target):
            prepared = await self.prepare(scope, request, target)
            if request.stream:
                if not await send_stream(
                    stream_reply_events(self.service, prepared), ChatChunks(prepared), send
                ):
                    return
            else:
                scores = await prompt_scores([prepared], request.prompt_logprobs)
                await send_json(
                    send, _reply(prepared, await complete_request(self.service, prepared), scores[0])
                )
            self.service.delivered(prepared)


def _reply(prepared: PreparedRequest, done: list[CommittedChoice], scored: Ranked | None) -> bytes:
    request, target = prepared.request, prepared.target
    prompt_ids = prepared.stitched.prompt_ids
    choices = []
    for index, one in enumerate(done):
        completion, logprobs = one.completion, None
        if request.logprobs:
            logprobs = logprobs_of(
                target.renderer,
                completion.token_ids,
                completion.logprobs,
                completion.tops,
                as_ids=request.return_tokens_as_token_ids,
            )
        choice = choice_of(index, completion, one.message, target.step, logprobs)
        if request.return_token_ids:
            choice["token_ids"] = completion.token_ids
        choices.append(choice)
    reply = {
        "id": f"chatcmpl-{done[0].completion.sample_id}",
        "object": "chat.completion",
        "created": int(prepared.created_at),
        "model": request.model,
        "choices": choices,
        "usage": usage_of(len(prompt_ids), [one.completion for one in done]),
        "system_fingerprint": prepared.fingerprint,
    }
    if request.return_token_ids:
        reply["prompt_token_ids"] = prepared.shown_prompt_ids
    if scored is not None:
        reply["prompt_logprobs"] = prompt_logprobs_of(
            target.renderer, prompt_ids, scored, most=request.prompt_logprobs or 0
        )
    return orjson.dumps(reply)
