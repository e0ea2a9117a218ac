"""A chat endpoint over HTTP whose model is a function of the conversation."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import art
from art.process.resources import listen

Policy = Callable[[list[dict[str, Any]]], Mapping[str, Any]]
"""The messages so far -> the assistant's message."""


def call(name: str, arguments: Any = None, *, id: str = "c0") -> dict[str, Any]:
    """A tool call; `arguments` as a text goes out as it is."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}


def script(*turns: Mapping[str, Any]) -> Policy:
    """Says these turns, whatever it hears; the last one again and again."""

    def policy(messages: list[dict[str, Any]]) -> Mapping[str, Any]:
        said = sum(message["role"] == "assistant" for message in messages)
        return turns[min(said, len(turns) - 1)]

    return policy


DONE = {"tool_calls": [call("complete_task", {"summary": "All done."}, id="end")]}


class Agent:
    """`with Agent() as agent`: `agent.model()` speaks to it; `agent.policy` may be changed at any time."""

    def __init__(self) -> None:
        self.policy: Policy = script(DONE)
        self.asked: list[dict[str, Any]] = []
        self._port = 0

    def model(self) -> art.Model:
        return art.Model(
            name="agent",
            project="mcp",
            inference_model_name="scripted",
            inference_api_key="k",
            inference_base_url=f"http://127.0.0.1:{self._port}/v1",
        )

    async def _complete(self, request: Request) -> JSONResponse:
        body = await request.json()
        self.asked.append(body)
        message = {"role": "assistant", "content": None, **self.policy(body["messages"])}
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
        head = {"id": "c", "object": "chat.completion", "created": 1, "model": body["model"]}
        return JSONResponse({**head, "choices": [choice]})

    def __enter__(self) -> Agent:
        listener = listen("127.0.0.1", 0)
        self._port = listener.getsockname()[1]
        routes = [Route("/v1/chat/completions", self._complete, methods=["POST"])]
        config = uvicorn.Config(Starlette(routes=routes), log_config=None, lifespan="off", ws="none")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._server.serve(sockets=[listener])), daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)
