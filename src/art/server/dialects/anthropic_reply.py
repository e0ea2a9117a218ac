"""What `/v1/messages` answers: content blocks, the reason of the end, errors in Anthropic's shape."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import orjson
from pydantic_core import from_json

from art.errors import ARTError
from art.server.dialects.chat_reply import Completion
from art.server.http import error_body, status_of
from art.server.tenants.tenancy import Tenant
from art.wire.headers import SAMPLE_FIELD, STEP_FIELD

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def blocks_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The content blocks of an assistant's chat message: thinking, text, calls."""
    blocks: list[dict[str, Any]] = []
    if message.get("reasoning_content"):
        blocks.append({"type": "thinking", "thinking": message["reasoning_content"], "signature": ""})
    if message.get("content"):
        blocks.append({"type": "text", "text": message["content"]})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        blocks.append(
            {
                "type": "tool_use",
                "id": call["id"],
                "name": function["name"],
                "input": _input(function["arguments"]),
            }
        )
    return blocks


def _input(arguments: str) -> Any:
    """The object; of one that was cut off what is there, as the SDK reads it from a stream."""
    with contextlib.suppress(orjson.JSONDecodeError):  # then it was cut off
        return orjson.loads(arguments)
    try:
        read = from_json(arguments, allow_partial=True)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def stop_of(completion: Completion, message: Mapping[str, Any], *, context_full: bool) -> dict[str, Any]:
    """`stop_reason` and `stop_sequence`. `context_full`: there was room for less than `max_tokens`."""
    if completion.stop_string is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": completion.stop_string}
    if completion.finish_reason == "length":
        reason = "model_context_window_exceeded" if context_full else "max_tokens"
    else:
        reason = "tool_use" if message.get("tool_calls") else "end_turn"
    return {"stop_reason": reason, "stop_sequence": None}


def message_object(
    completion: Completion,
    *,
    model: str,
    step: int | None,
    content: list[dict[str, Any]],
    stop: Mapping[str, Any],
    input_tokens: int,
) -> dict[str, Any]:
    """A `message`; sample and step are extra fields of it."""
    return {
        "id": f"msg_{completion.sample_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        **stop,
        "usage": usage_of(input_tokens, completion),
        SAMPLE_FIELD: completion.sample_id,
        STEP_FIELD: step,
    }


def usage_of(input_tokens: int, completion: Completion) -> dict[str, Any]:
    """Counts of ids."""
    return {"input_tokens": input_tokens, "output_tokens": len(completion.token_ids)}


def anthropic_error(error: ARTError, tenant: Tenant = None) -> dict[str, Any]:
    """`{"type": "error", "error": {...}}`; `details.error_code` is the code that OpenAI's shape has."""
    status, _ = status_of(error)
    told = error_body(error, tenant)["error"]
    details = {"error_code": told["code"], "param": told["param"]}
    kind = "invalid_request_error" if status < 500 else "api_error"
    return {
        "type": "error",
        "error": {"type": _KINDS.get(status, kind), "message": told["message"], "details": details},
    }
