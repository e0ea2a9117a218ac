"""A chat endpoint without a network: it answers what it is told to, whole or in pieces."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import Any

import httpx2
import openai

from art.client.http.openai_client import ObservedOpenAI


class Endpoint:
    """Replies are `reply 0`, `reply 1` ... or the messages in `say`; each choice has a `sample_id`."""

    def __init__(self) -> None:
        self.say: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.samples = 0
        self.cut_after: int | None = None

    def __call__(self, request: Any) -> Any:
        package = httpx2 if isinstance(request, httpx2.Request) else __import__("httpx")
        if "chat/completions" not in str(request.url):
            return package.Response(200, json={"data": [1, 2], "choices": []})
        body = json.loads(request.content)
        self.asked.append(body)
        choices = [self._choice(index) for index in range(body.get("n") or 1)]
        head = {"id": "c", "created": 1, "model": body["model"]}
        if body.get("stream"):
            kind = {"content-type": "text/event-stream"}
            return package.Response(200, headers=kind, stream=_stream(package, head, choices))
        return package.Response(200, json={**head, "object": "chat.completion", "choices": choices})

    async def later(self, request: Any) -> Any:
        return self(request)

    def _choice(self, index: int) -> dict[str, Any]:
        said = self.say.pop(0) if self.say else {"content": f"reply {self.samples}"}
        self.samples += 1
        reason = "tool_calls" if said.get("tool_calls") else "stop"
        message = {"role": "assistant", "content": None, **said}
        sample = {"sample_id": f"s{self.samples - 1}", "step": 0}
        return {"index": index, "message": message, "logprobs": None, "finish_reason": reason, **sample}

    def ours(self) -> ObservedOpenAI:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self.later))
        return ObservedOpenAI(api_key="k", base_url="http://ours/v1", http_client=http, max_retries=0)

    def openai(self) -> openai.AsyncOpenAI:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self.later))
        return openai.AsyncOpenAI(api_key="k", base_url="http://theirs/v1", http_client=http, max_retries=0)

    def sync_openai(self) -> openai.OpenAI:
        http = httpx2.Client(transport=httpx2.MockTransport(self))
        return openai.OpenAI(api_key="k", base_url="http://theirs/v1", http_client=http, max_retries=0)

    def http(self, package: ModuleType) -> Any:
        return package.AsyncClient(transport=package.MockTransport(self.later))


def _stream(package: ModuleType, head: dict[str, Any], choices: list[dict[str, Any]]) -> Any:
    def events() -> Iterator[bytes]:
        for choice in choices:
            deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
            deltas += [{"content": piece} for piece in choice["message"]["content"] or ""]
            deltas += [
                {"tool_calls": [{"index": index, **call}]}
                for index, call in enumerate(choice["message"].get("tool_calls") or ())
            ]
            for delta in [*deltas, {}]:
                part = {**choice, "delta": delta, "finish_reason": None if delta else choice["finish_reason"]}
                del part["message"]
                chunk = {**head, "object": "chat.completion.chunk", "choices": [part]}
                yield b"data: " + json.dumps(chunk).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"

    class Pieces(package.AsyncByteStream, package.SyncByteStream):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[bytes]:
            return events()

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for event in events():
                yield event

    return Pieces()
