"""A chat endpoint over HTTP whose model is a function of the conversation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import art
from serving import serving_in_a_thread

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
        self._url = ""

    def model(self) -> art.Model:
        return art.Model(
            name="agent",
            project="mcp",
            inference_model_name="scripted",
            inference_api_key="k",
            inference_base_url=f"{self._url}/v1",
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
        routes = [Route("/v1/chat/completions", self._complete, methods=["POST"])]
        self._running = serving_in_a_thread(Starlette(routes=routes), ws="none")
        self._url = self._running.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.__exit__(None, None, None)
