"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import orjson

from art.errors import ARTError, RequestError
from art.server.dialects.chat_reply import Completion, choice_of, logprobs_of, message_of, usage_of
from art.server.dialects.chat_request import read_chat_request
from art.server.dialects.chat_sampling import Prepared, Sampler, new_completion
from art.server.dialects.chat_stream import stream_reply
from art.server.http import ClientGoneError, Receive, Scope, Send, read_json, send_error, send_json
from art.server.settings import LimitSettings
from art.server.tenants.tenancy import tenant_in
from art.wire.headers import ROLLOUT_HEADER

_ROLLOUT = ROLLOUT_HEADER.encode()
_ROLLOUT_LENGTH = 256


class ChatCompletions:
    """Answers chat completions, whole or streamed."""

    def __init__(self, sampler: Sampler, limits: LimitSettings) -> None:
        self._sampler = sampler
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tenant = tenant_in(scope)
        try:
            body = await read_json(receive, limit=self._limits.max_body_bytes)
        except ClientGoneError:
            return
        except ARTError as error:
            await send_error(send, error, tenant)
            return
        task = asyncio.current_task()
        assert task is not None
        watch = asyncio.create_task(_cancel_when_gone(receive, task))
        try:
            await self._answer(scope, body, send)
        except ARTError as error:
            await send_error(send, error, tenant)
        except asyncio.CancelledError:
            if not watch.done():
                raise
            # The client went away; its generation is cancelled, and nobody waits for a reply.
            task.uncancel()
        finally:
            watch.cancel()

    async def _answer(self, scope: Scope, body: Any, send: Send) -> None:
        request = read_chat_request(body, max_n=self._limits.max_n)
        rollout_id, tenant = _rollout_of(scope), tenant_in(scope)
        target = await self._sampler.catalog.resolve(request.model, tenant)
        if request.template_arguments:
            target = replace(target, renderer=target.renderer.told(request.template_arguments))
        async with self._sampler.catalog.lease(target):
            prepared = await self._sampler.prepare(request, target, rollout_id, tenant=tenant)
            if request.stream:
                await stream_reply(self._sampler, prepared, send)
            else:
                await send_json(send, await self._whole(prepared))

    async def _whole(self, prepared: Prepared) -> bytes:
        completions = [new_completion() for _ in range(prepared.request.n)]
        if len(completions) == 1:
            await self._run(prepared, 0, completions[0])
        else:
            await _together([self._run(prepared, n, one) for n, one in enumerate(completions)])
        request, target = prepared.request, prepared.target
        tools = request.tools if request.read_calls else None
        prompt_ids = prepared.stitched.prompt_ids
        done = [
            (one, message_of(one, target.renderer.parse(one.token_ids, prompt_ids, tools)))
            for one in completions
        ]
        await self._sampler.keep(prepared, done)
        choices = [
            choice_of(
                index,
                one,
                message,
                target.step,
                logprobs_of(target.renderer, one.token_ids, one.logprobs) if request.logprobs else None,
            )
            for index, (one, message) in enumerate(done)
        ]
        return orjson.dumps(
            {
                "id": f"chatcmpl-{completions[0].sample_id}",
                "object": "chat.completion",
                "created": int(prepared.created_at),
                "model": request.model,
                "choices": choices,
                "usage": usage_of(len(prompt_ids), completions),
                "system_fingerprint": prepared.fingerprint,
            }
        )

    async def _run(self, prepared: Prepared, index: int, completion: Completion) -> None:
        async for _ in self._sampler.deltas(prepared, index, completion):
            pass


async def _together(runs: list[Any]) -> None:
    """All of them; the first failure cancels the rest."""
    tasks = [asyncio.ensure_future(run) for run in runs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _cancel_when_gone(receive: Receive, task: asyncio.Task[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
    task.cancel()


def _rollout_of(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == _ROLLOUT:
            rollout: str = value.decode("latin-1")
            if not rollout or len(rollout) > _ROLLOUT_LENGTH or not rollout.isprintable():
                raise RequestError(
                    f"header {ROLLOUT_HEADER} must be 1 to {_ROLLOUT_LENGTH} printable characters",
                    status=400,
                    code="invalid_value",
                    param=ROLLOUT_HEADER,
                )
            return rollout
    return None
