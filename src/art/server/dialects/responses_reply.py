"""What the Responses API answers: a response with its items, each naming its sample."""

from __future__ import annotations

import time
from typing import Any

from art.rendering.raw_json import is_object
from art.server.dialects.chat_prepared import Prepared
from art.server.dialects.chat_reply import Completion, logprobs_of
from art.server.dialects.responses_items import Item
from art.server.dialects.responses_request import ResponsesRequest
from art.server.dialects.responses_store import response_id_of
from art.wire.headers import SAMPLE_FIELD, STEP_FIELD, TOKENS_FIELD

_REPEATED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "prompt_cache_key": None,
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "user": None,
}
"""Fields that a response has of its request, and what they are where they were not sent."""


def response_of(
    asked: ResponsesRequest,
    prepared: Prepared,
    completion: Completion,
    *,
    status: str,
    output: list[Item],
) -> dict[str, Any]:
    """A response; `status`: `in_progress`, `completed`, `incomplete` or `failed`."""
    ended = status in ("completed", "incomplete")
    response: dict[str, Any] = {
        "id": response_id_of(completion.sample_id),
        "object": "response",
        "created_at": int(prepared.created_at),
        "completed_at": int(time.time()) if status == "completed" else None,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "model": asked.chat.model,
        "output": output,
        "service_tier": "default",
        "top_logprobs": asked.chat.top_logprobs,
        "truncation": "disabled",
        "usage": _usage(prepared, completion, output) if ended else None,
        **{name: asked.sent.get(name, default) for name, default in _REPEATED.items()},
        SAMPLE_FIELD: completion.sample_id,
        STEP_FIELD: prepared.target.step,
        "system_fingerprint": prepared.fingerprint,
    }
    if ended:
        response[TOKENS_FIELD] = len(completion.token_ids)
    return response


def output_of(
    asked: ResponsesRequest, prepared: Prepared, completion: Completion, message: dict[str, Any], status: str
) -> list[Item]:
    """The items of an assistant's message: its reasoning, its text, its calls."""
    sample_id, content, calls = completion.sample_id, message["content"], message.get("tool_calls", ())
    reasoning = message.get("reasoning_content")
    items = [reasoning_item(sample_id, reasoning, "completed")] if reasoning else []
    if content or not (items or calls):
        logprobs = text_logprobs(prepared, completion) if asked.logprobs else None
        items.append(message_item(sample_id, content or "", status, logprobs))
    for call in calls:
        ends = status if call is calls[-1] else "completed"
        items.append(call_item(sample_id, call, status_of_call(call, ends)))
    return items


def reasoning_item(sample_id: str, text: str | None, status: str) -> Item:
    """What the model thought, in full; without a text there is no content yet."""
    content = [] if text is None else [reasoning_part(text)]
    own = {"id": _item_id("rs", sample_id), "type": "reasoning", "status": status}
    return {**own, "summary": [], "content": content, SAMPLE_FIELD: sample_id}


def message_item(
    sample_id: str, text: str | None, status: str, logprobs: list[dict[str, Any]] | None = None
) -> Item:
    """What the model said; without a text there is no content yet."""
    own = {"id": _item_id("msg", sample_id), "type": "message", "role": "assistant", "status": status}
    return {**own, "content": [] if text is None else [text_part(text, logprobs)], SAMPLE_FIELD: sample_id}


def call_item(sample_id: str, call: dict[str, Any], status: str, *, arguments: str | None = None) -> Item:
    """A call; its `call_id` names the sample, too."""
    number = call["id"].rpartition("_")[2]
    function = call["function"]
    return {
        "id": f"{_item_id('fc', sample_id)}_{number}",
        "type": "function_call",
        "status": status,
        "call_id": call["id"],
        "name": function["name"],
        "arguments": function["arguments"] if arguments is None else arguments,
        SAMPLE_FIELD: sample_id,
    }


def text_part(text: str, logprobs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """A part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


def reasoning_part(text: str) -> dict[str, Any]:
    """A part of a reasoning item."""
    return {"type": "reasoning_text", "text": text}


def text_logprobs(prepared: Prepared, completion: Completion) -> list[dict[str, Any]]:
    """One entry for each sampled id, those of reasoning and calls included."""
    renderer = prepared.target.renderer
    told = logprobs_of(renderer, completion.token_ids, completion.logprobs, completion.tops)
    content: list[dict[str, Any]] = told["content"]
    return content


def status_of_end(finish: str) -> str:
    """The status of a response whose choice ended so."""
    return "incomplete" if finish == "length" else "completed"


def status_of_call(call: dict[str, Any], status: str) -> str:
    """`incomplete` for a last call in which a response of that status was cut off."""
    whole = status != "incomplete" or is_object(call["function"]["arguments"])
    return "completed" if whole else "incomplete"


def _item_id(kind: str, sample_id: str) -> str:
    return f"{kind}_{sample_id.rpartition('_')[2]}"


def _usage(prepared: Prepared, completion: Completion, output: list[Item]) -> dict[str, Any]:
    prompt, sampled = len(prepared.stitched.prompt_ids), len(completion.token_ids)
    thought = "".join(
        part["text"] for item in output if item["type"] == "reasoning" for part in item["content"]
    )
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": sampled,
        # Counted from the text: where thinking ends among the ids is the format's own affair.
        "output_tokens_details": {
            "reasoning_tokens": min(sampled, len(prepared.target.renderer.encode(thought))) if thought else 0
        },
        "total_tokens": prompt + sampled,
    }
