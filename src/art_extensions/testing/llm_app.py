"""The HTTP application behind `LlmServer`: keys, formats, capacity, mischief, and OpenAI's reply shape."""

from __future__ import annotations

import asyncio
import hmac
import inspect
import json
import socket
import time
import uuid
from collections.abc import Mapping
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from art_extensions.testing.answers import IN_THE_ANSWER, AnsweringModel, Served, ToolCalls, spoil, text_of

REFUSAL = "I'm sorry, but I can't help with that."
CHARACTERS_PER_TOKEN = 4


async def serve(server: AnsweringModel, listener: socket.socket, stop: asyncio.Event) -> None:
    """Serve until `stop` is set."""
    endpoint = Endpoint(server)
    routes = [
        Route("/v1/chat/completions", endpoint.complete, methods=["POST"]),
        Route("/v1/models", endpoint.models, methods=["GET"]),
    ]
    config = uvicorn.Config(
        Starlette(routes=routes),
        http="h11",  # the one that notices an answer that is shorter than announced, and ends the connection
        ws="none",
        log_level="critical",
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    process = uvicorn.Server(config)
    serving = asyncio.create_task(process.serve(sockets=[listener]))
    await stop.wait()
    endpoint.closing.set()
    process.should_exit = True
    await serving


class Endpoint:
    """The routes, and the state of one server's life."""

    def __init__(self, server: AnsweringModel) -> None:
        self._server = server
        self._dice = server.mischief.sequence()
        self._at_once = 0
        self.closing = asyncio.Event()

    async def models(self, request: Request) -> Response:
        if not self._is_authorized(request):
            return failure(401, "invalid_api_key", "Incorrect API key provided.")
        return JSONResponse({"object": "list", "data": [{"id": self._server.model, "object": "model"}]})

    async def complete(self, request: Request) -> Response:
        if not self._is_authorized(request):
            return failure(401, "invalid_api_key", "Incorrect API key provided.")
        try:
            body = json.loads(await request.body())
        except json.JSONDecodeError as error:
            return failure(400, "invalid_json", f"The body is not JSON: {error}")
        if complaint := self._complaint(body):
            return self._record_request(request, body, failure(400, "invalid_request", complaint))
        self._at_once += 1
        try:
            if self._server.capacity is not None and self._at_once > self._server.capacity:
                return self._record_request(request, body, self._busy(), "busy")
            trouble = self._server.mischief.draw(self._dice)
            if trouble == "hang":
                late = self._record_request(
                    request, body, failure(503, "server_closing", "Too late."), trouble
                )
                await self.closing.wait()
                return late
            return self._record_request(request, body, await self._respond(body, trouble), trouble)
        finally:
            self._at_once -= 1

    def _is_authorized(self, request: Request) -> bool:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        return hmac.compare_digest(given.encode(), self._server.key.encode())

    def _complaint(self, body: Any) -> str | None:
        """Returns why a request is not understood; None: it is."""
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
            return "'messages' is missing or empty."
        if not isinstance(body.get("model"), str):
            return "'model' is missing."
        if body.get("stream"):
            return "'stream' is not supported."
        asked = (body.get("response_format") or {}).get("type", "text")
        return (
            None if asked in self._server.formats else f"response_format of type {asked!r} is not supported."
        )

    async def _respond(self, body: dict[str, Any], trouble: str | None) -> Response:
        mischief = self._server.mischief
        wait = self._server.delay + (mischief.slow_seconds if trouble == "slow" else 0)
        await asyncio.sleep(wait)
        if trouble == "fault":
            return failure(500, "server_error", "The server had an error while processing your request.")
        if trouble == "busy":
            return self._busy()
        if trouble == "refusal":
            return reply(body, None, refusal=REFUSAL)
        try:
            answer = self._server.answer(body)
            answer = await answer if inspect.isawaitable(answer) else answer
        except (ValueError, LookupError, TypeError) as error:
            said = f"{type(error).__name__}: {error}"
            return failure(400, "invalid_request", said, param=getattr(error, "param", None))
        if isinstance(answer, ToolCalls):
            return reply(body, None, calls=answer, finish_reason="tool_calls")
        if trouble in IN_THE_ANSWER:
            answer = spoil(answer, trouble)
        content = answer if isinstance(answer, str) else json.dumps(answer)
        if trouble == "prose":
            content = f"Here is my answer:\n\n```json\n{content}\n```\nLet me know if you need more."
        if trouble == "truncated":
            return reply(body, content[: len(content) // 2], finish_reason="length")
        response = reply(body, content)
        return CutResponse(response) if trouble == "cut" else response

    def _busy(self) -> Response:
        busy = failure(429, "rate_limit_exceeded", "Rate limit reached.")
        busy.headers["retry-after"] = f"{self._server.mischief.retry_after:g}"
        return busy

    def _record_request(
        self, request: Request, body: dict[str, Any], response: Response, trouble: str | None = None
    ) -> Response:
        headers = dict(request.headers)
        headers.pop("authorization", None)
        self._server.served.append(
            Served(body=body, headers=headers, status=response.status_code, trouble=trouble)
        )
        return response


class CutResponse(Response):
    """Announces all of another response and sends half of it."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.body, headers=dict(response.headers))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        half = bytes(self.body[: len(self.body) // 2])
        await send({"type": "http.response.body", "body": half, "more_body": True})


def failure(status: int, code: str, message: str, *, param: str | None = None) -> Response:
    error = {"message": message, "type": code, "code": code, "param": param}
    return JSONResponse({"error": error}, status_code=status)


def reply(
    body: Mapping[str, Any],
    content: str | None,
    *,
    refusal: str | None = None,
    calls: ToolCalls | None = None,
    finish_reason: str = "stop",
) -> Response:
    """A chat completion with the usage that its texts come to, at four characters a token."""
    asked = sum(len(text_of(message)) for message in body["messages"]) // CHARACTERS_PER_TOKEN + 1
    given = len(content or refusal or "") // CHARACTERS_PER_TOKEN + 1
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": refusal}
    if calls is not None:
        message["tool_calls"] = calls.as_openai(len(body["messages"]))
    return JSONResponse(
        {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}],
            "usage": {"prompt_tokens": asked, "completion_tokens": given, "total_tokens": asked + given},
        }
    )
