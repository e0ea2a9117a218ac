"""The smallest good body of each dialect, and how it says that something went wrong."""

from __future__ import annotations

from typing import Any

import httpx

_HI = [{"role": "user", "content": "hello"}]

DIALECTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "player", "messages": _HI, "max_tokens": 9},
    "/v1/completions": {"model": "player", "prompt": "hello", "max_tokens": 9},
    "/inference/v1/generate": {
        "model": "player",
        "token_ids": [72, 105],
        "sampling_params": {"max_tokens": 9},
    },
    "/v1/messages": {"model": "player", "messages": _HI, "max_tokens": 9},
    "/v1/messages/count_tokens": {"model": "player", "messages": _HI},
    "/v1/responses": {"model": "player", "input": "hello", "max_output_tokens": 9},
}
PROMPTS = {"/v1/completions": "prompt", "/v1/responses": "input"}
"""Where a dialect has its text, if not in `messages`."""
_A_ID = 2
"""Bytes of a body for an id of one digit."""


def with_text(path: str, text: str) -> dict[str, Any]:
    """The body with another text; where a dialect has ids, as many as make the body as long."""
    if "token_ids" in DIALECTS[path]:
        return {**DIALECTS[path], "token_ids": [1] * (len(text) // _A_ID)}
    name = PROMPTS.get(path, "messages")
    return {**DIALECTS[path], name: text if path in PROMPTS else [{"role": "user", "content": text}]}


def refusal(reply: httpx.Response, path: str) -> dict[str, Any]:
    """`message`, `type`, `param` and `code` of an error, whose shape is the dialect's."""
    assert reply.headers["content-type"].startswith("application/json"), reply.text
    body = reply.json()
    if "/v1/messages" in path:
        assert body.keys() == {"type", "error"}
        assert body["type"] == "error"
        error = body["error"]
        assert error.keys() == {"type", "message", "details"}
        details = error["details"]
        read = {
            "message": error["message"],
            "type": error["type"],
            "code": details["error_code"],
            "param": details["param"],
        }
    else:
        assert body.keys() == {"error"}
        read = body["error"]
        assert read.keys() == {"message", "type", "param", "code"}
    assert isinstance(read["message"], str)
    assert read["message"]
    assert isinstance(read["type"], str)
    assert isinstance(read["code"], str)
    return read
