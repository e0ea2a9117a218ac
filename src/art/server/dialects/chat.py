"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

import orjson

from art.engine.protocol import Ranked
from art.server.dialects.chat_prepared import Prepared
from art.server.dialects.chat_reply import choice_of, logprobs_of, usage_of
from art.server.dialects.chat_request import ChatRequest, read_chat_request
from art.server.dialects.chat_stream import ChatChunks
from art.server.dialects.dialect import Dialect
from art.server.dialects.event_stream import stream_reply
from art.server.dialects.prompt_scores import prompt_logprobs_of, prompt_scores
from art.server.dialects.told import told
from art.server.dialects.whole import Done, whole
from art.server.http import Scope, Send, send_json


class ChatCompletions(Dialect):
    """Answers chat completions, whole or streamed."""

    def read(self, scope: Scope, body: Any) -> ChatRequest:
        """The request of a decoded body. Raises: RequestError."""
        return read_chat_request(body, max_n=self.limits.max_n)

    async def answer(self, scope: Scope, request: ChatRequest, send: Send) -> None:
        """Sample what is asked for."""
        target = await self.target_of(scope, request)
        async with self.sampler.catalog.lease(target):
            prepared = await self.prepare(scope, request, target)
            if request.stream:
                if not await stream_reply(told(self.sampler, prepared), ChatChunks(prepared), send):
                    return
            else:
                scores = await prompt_scores([prepared], request.prompt_logprobs)
                await send_json(send, _reply(prepared, await whole(self.sampler, prepared), scores[0]))
            self.sampler.delivered(prepared)


def _reply(prepared: Prepared, done: list[Done], scored: Ranked | None) -> bytes:
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
                as_ids=request.tokens_as_ids,
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
        reply["prompt_token_ids"] = list(prompt_ids)
    if scored is not None:
        reply["prompt_logprobs"] = prompt_logprobs_of(
            target.renderer, prompt_ids, scored, most=request.prompt_logprobs or 0
        )
    return orjson.dumps(reply)
