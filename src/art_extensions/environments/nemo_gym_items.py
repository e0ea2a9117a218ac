"""NeMo-Gym's requests and responses, which have the form of OpenAI's Responses API, and chat messages."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from art.types import text_of_content
from art_extensions.environments.library_environment import newest_calls
from art_extensions.environments.observed_images import image_part

if TYPE_CHECKING:
    from art.environments.adapters.environment import RolloutConversation
    from art.environments.tasks import Message

ASKED = "responses_create_params"
"""The column of a row with the request: `input`, `tools`, `tool_choice`, `parallel_tool_calls`,
`instructions`. What it says of sampling is left to the rollout.
"""


def chat_messages_of(asked: Mapping[str, Any]) -> list[Message]:
    """Returns the messages of a request. Calls that follow each other are of one reply."""
    given = asked.get("input") or ()
    items = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
    if asked.get("instructions"):
        items.insert(0, {"role": "system", "content": asked["instructions"]})
    messages: list[Any] = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            role = "system" if item["role"] == "developer" else item["role"]
            messages.append({"role": role, "content": content_of(item.get("content"))})
        elif kind == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            messages.append(tool_message(item))
    return messages


def content_of(content: Any) -> Any:
    """Returns the content of a chat message: a text, or its parts where there is an image among them.

    >>> content_of([{"type": "input_text", "text": "How many?"}])
    'How many?'
    """
    if isinstance(content, str) or content is None:
        return content or ""
    parts = [_part(one) for one in content if "text" in one or one.get("type") == "input_image"]
    has_image = any(one["type"] == "image_url" for one in parts)
    return parts if has_image else text_of_content(parts)


def _part(given: Mapping[str, Any]) -> dict[str, Any]:
    if given.get("type") != "input_image":
        return {"type": "text", "text": given["text"]}
    return image_part(given.get("image_url") or "", given.get("detail") or "auto")


def chat_tools_of(asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the tools of a request in the form of chat requests."""
    return [
        {
            "type": "function",
            "function": {
                "name": one["name"],
                "description": one.get("description") or "",
                "parameters": one.get("parameters") or {"type": "object", "properties": {}},
            },
        }
        for one in asked.get("tools") or ()
        if one.get("type", "function") == "function"
    ]


PARALLEL = "parallel_tool_calls"
ONE_CALL = '{"error": "Not run: one call at a time (parallel_tool_calls is false)."}'
"""What a call beside the first gives, where a request allows one."""


def calling_of(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a request says of calls, `tool_choice` and `parallel_tool_calls`, in the form of chat
    requests; what it does not have is left out.

    >>> calling_of({"tool_choice": {"type": "function", "name": "click"}, "parallel_tool_calls": False})
    {'tool_choice': {'type': 'function', 'function': {'name': 'click'}}, 'parallel_tool_calls': False}
    """
    found = {"tool_choice": _chat_choice_of(asked.get("tool_choice")), PARALLEL: asked.get(PARALLEL)}
    return {name: value for name, value in found.items() if value is not None}


def _chat_choice_of(choice: Any) -> Any:
    if not isinstance(choice, Mapping):
        return choice
    if choice.get("type") == "allowed_tools":
        tools = [_chat_name_of(one) for one in choice["tools"]]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice["mode"], "tools": tools}}
    return _chat_name_of(choice)


def _chat_name_of(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": tool.get("name")}}


def items_of_reply(conversation: RolloutConversation) -> list[dict[str, Any]]:
    """Returns the items of the newest reply: its text, if it has one or calls nothing, and its calls."""
    choice: Any = conversation.trajectory.messages_and_choices[-1]
    text, calls = text_of_content(choice.message.content), newest_calls(conversation)
    items: list[dict[str, Any]] = []
    if text or not calls:
        part = {"type": "output_text", "text": text, "annotations": []}
        message = {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
        items.append({"id": f"msg_{conversation.turns}", **message})
    for call in calls:
        function = {"name": call.function.name, "arguments": call.function.arguments}
        items.append({"id": call.id, "type": "function_call", "call_id": call.id, **function})
    return items


def refuse_calls(conversation: RolloutConversation, calls: Sequence[Any]) -> list[dict[str, Any]]:
    """Answers calls that are not run. Returns the items of these answers."""
    refused = [output_item(call.id, ONE_CALL) for call in calls]
    conversation.add(*map(tool_message, refused))
    return refused


def tool_message(item: Mapping[str, Any]) -> Message:
    """Returns the message with what a call gave, which is an item's `output`."""
    return {"role": "tool", "tool_call_id": item["call_id"], "content": content_of(item["output"])}


def output_item(call_id: str, output: str) -> dict[str, Any]:
    """Returns the item with what a call gave."""
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def response_of(items: Sequence[Mapping[str, Any]], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the response that NeMo-Gym's servers are given, of all items since the request."""
    return {
        "id": "resp_art",
        "created_at": time.time(),
        "model": "art",
        "object": "response",
        "output": list(items),
        PARALLEL: asked.get(PARALLEL) is not False,
        "tool_choice": asked.get("tool_choice") or "auto",
        "tools": list(asked.get("tools") or ()),
    }
