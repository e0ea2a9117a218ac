"""A chat completion as server-sent events.

Text is told as soon as it can no longer change: not inside a tool call, not half a character, not what may
become a stop string. The sample is committed before the chunk that ends its choice.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from art.engine.protocol import Delta
from art.errors import ARTError, WorkerError
from art.server.dialects.chat_reply import (
    Completion,
    chunk_choice,
    finish_reason,
    logprobs_of,
    message_of,
    usage_of,
)
from art.server.dialects.chat_sampling import Prepared, Sampler, new_completion
from art.server.http import Send, error_body

_START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")],
}

Emission = tuple[int, Delta | None]
"""(choice, what is new); None: the choice has ended."""


async def stream_reply(sampler: Sampler, prepared: Prepared, send: Send) -> None:
    """Send the whole stream. Raises: ARTError before the first byte; later errors become an event."""
    choices = [StreamedChoice(prepared, index) for index in range(prepared.request.n)]
    queue: asyncio.Queue[Emission | ARTError] = asyncio.Queue()
    tasks = [asyncio.create_task(_feed(sampler, prepared, choice, queue)) for choice in choices]
    try:
        first = await queue.get()
        if isinstance(first, ARTError):
            raise first
        await send(_START)
        await _send_chunk(send, prepared, choices, [choice.opening() for choice in choices])
        try:
            await _relay(sampler, prepared, choices, first, queue, send)
        except ARTError as error:
            await _send_event(send, orjson.dumps(error_body(error, prepared.tenant)))
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    # A defect in an engine is not an ARTError: it must reach the log with its traceback.
    for outcome in ended:
        if isinstance(outcome, Exception):
            raise outcome


async def _feed(
    sampler: Sampler, prepared: Prepared, choice: StreamedChoice, queue: asyncio.Queue[Emission | ARTError]
) -> None:
    last: Emission | ARTError = WorkerError(f"sampling {choice.completion.sample_id} ended unexpectedly")
    try:
        async for delta in sampler.deltas(prepared, choice.index, choice.completion):
            queue.put_nowait((choice.index, delta))
        last = (choice.index, None)
    except ARTError as error:
        last = error
    finally:
        queue.put_nowait(last)


async def _relay(
    sampler: Sampler,
    prepared: Prepared,
    choices: list[StreamedChoice],
    item: Emission,
    queue: asyncio.Queue[Emission | ARTError],
    send: Send,
) -> None:
    open_choices = len(choices)
    while True:
        index, delta = item
        choice = choices[index]
        if delta is not None:
            told = choice.tell(delta)
            if told is not None:
                await _send_chunk(send, prepared, choices, [told])
        else:
            rest = choice.end()
            await sampler.keep(prepared, [(choice.completion, choice.message)])
            for told in rest:
                await _send_chunk(send, prepared, choices, [told])
            open_choices -= 1
            if not open_choices:
                break
        following = await queue.get()
        if isinstance(following, ARTError):
            raise following
        item = following
    if prepared.request.include_usage:
        usage = usage_of(len(prepared.stitched.prompt_ids), [choice.completion for choice in choices])
        await _send_chunk(send, prepared, choices, [], usage)


class StreamedChoice:
    """One choice of a stream: what was sampled, and what of it was told."""

    def __init__(self, prepared: Prepared, index: int) -> None:
        self.index = index
        self.completion: Completion = new_completion()
        self.message: dict[str, Any] = {}
        self._prepared = prepared
        self._tools = prepared.request.tools if prepared.request.read_calls else None
        self._content = ""
        self._reasoning = ""
        self._read_at = 0

    def opening(self) -> dict[str, Any]:
        """The first chunk's choice: the role."""
        return self._choice({"role": "assistant", "content": ""})

    def tell(self, delta: Delta) -> dict[str, Any] | None:
        """What can be told after a delta."""
        change: dict[str, Any] = {}
        total = len(self.completion.token_ids)
        # Reading starts from the first id, so a long reply is read more rarely.
        if delta.finish_reason is None and total - self._read_at > total // 64:
            self._read_at = total
            change = self._progress()
        logprobs = None
        if self._prepared.request.logprobs and delta.token_ids:
            logprobs = logprobs_of(self._prepared.target.renderer, delta.token_ids, delta.logprobs)
        return self._choice(change, logprobs=logprobs) if change or logprobs else None

    def end(self) -> list[dict[str, Any]]:
        """The rest of the text, the calls, the reason of the end; sets `message` to what the client has."""
        parsed = self._prepared.target.renderer.parse(
            self.completion.token_ids, self._prepared.stitched.prompt_ids, self._tools
        )
        message = message_of(self.completion, parsed)
        rest: list[dict[str, Any]] = []
        change = self._advance(message["content"] or "", message.get("reasoning_content") or "")
        if change:
            rest.append(self._choice(change))
        for number, call in enumerate(message.get("tool_calls", ())):
            rest.append(self._choice({"tool_calls": [{"index": number, **call}]}))
        # What was told cannot be taken back: the message is what the client can put together.
        self.message = {**message, "content": self._content}
        rest.append(self._choice({}, finish=finish_reason(self.completion, message)))
        return rest

    def _progress(self) -> dict[str, Any]:
        parsed = self._prepared.target.renderer.parse(
            self.completion.token_ids, self._prepared.stitched.prompt_ids, self._tools, partial=True
        )
        stops = self._prepared.request.stop
        return self._advance(_settled(parsed.content, stops), _settled(parsed.reasoning or "", stops))

    def _advance(self, content: str, reasoning: str) -> dict[str, Any]:
        change: dict[str, Any] = {}
        if len(reasoning) > len(self._reasoning) and reasoning.startswith(self._reasoning):
            change["reasoning_content"] = reasoning[len(self._reasoning) :]
            self._reasoning = reasoning
        if len(content) > len(self._content) and content.startswith(self._content):
            change["content"] = content[len(self._content) :]
            self._content = content
        return change

    def _choice(
        self, delta: dict[str, Any], *, finish: str | None = None, logprobs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        return chunk_choice(
            self.index,
            delta,
            completion=self.completion,
            step=self._prepared.target.step,
            finish=finish,
            logprobs=logprobs,
        )


def _settled(text: str, stops: tuple[str, ...]) -> str:
    """The text without an unfinished character, and without an end that may become a stop string."""
    text = text.rstrip("\ufffd")
    held = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), held, -1):
            if text.endswith(stop[:length]):
                held = length
                break
    return text[: len(text) - held]


async def _send_chunk(
    send: Send,
    prepared: Prepared,
    choices: list[StreamedChoice],
    told: list[dict[str, Any]],
    usage: dict[str, Any] | None = None,
) -> None:
    chunk: dict[str, Any] = {
        "id": f"chatcmpl-{choices[0].completion.sample_id}",
        "object": "chat.completion.chunk",
        "created": int(prepared.created_at),
        "model": prepared.request.model,
        "choices": told,
        "system_fingerprint": prepared.fingerprint,
    }
    if prepared.request.include_usage:
        chunk["usage"] = usage
    await _send_event(send, orjson.dumps(chunk))


async def _send_event(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": b"data: " + body + b"\n\n", "more_body": True})
