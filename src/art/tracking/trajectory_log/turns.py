"""One turn of a conversation as a row's struct of five strings, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from art.tracking.trajectory_log.json_text import from_text, storable, to_text
from art.turns import is_choice, revive_choices, sample_id


def as_item(value: Any) -> Any:
    """A message or choice from its JSON: one with a finish reason is a choice again."""
    return revive_choices([value])[0]


def kept(items: Iterable[Any]) -> list[Any]:
    """The turns as they are read back: a dict in the shape of a choice that no server of ours sampled is the
    message that it holds.
    """
    return [item["message"] if _is_unsampled_dict(item) else item for item in items]


def _is_unsampled_dict(item: Any) -> bool:
    return isinstance(item, dict) and is_choice(item) and sample_id(item) is None


def to_struct(item: Any) -> dict[str, Any]:
    """What the column `messages` says of a turn: content that is no string is shown as JSON."""
    trainable = is_choice(item)
    if trainable:
        item = item["message"] if isinstance(item, Mapping) else item.message
    message = item if isinstance(item, Mapping) else from_text(to_text(item))
    if not isinstance(message, Mapping):  # an object that is no message at all
        message = {"content": str(message)}
    content, calls = message.get("content"), message.get("tool_calls")
    return {
        "role": _text(message.get("role") or ("assistant" if trainable else "")),
        "content": "" if content is None else _text(content),
        "tool_calls": to_text(calls) if calls else None,
        "tool_call_id": _text(message["tool_call_id"]) if message.get("tool_call_id") else None,
        "trainable": trainable,
    }


def from_struct(struct: Mapping[str, Any]) -> Any:
    """The turn that a struct tells of. A trainable one is a choice, without its log probabilities."""
    message = {"role": struct["role"], "content": struct["content"]}
    if struct.get("tool_calls"):
        message["tool_calls"] = from_text(struct["tool_calls"])
    if struct.get("tool_call_id"):
        message["tool_call_id"] = struct["tool_call_id"]
    if not struct.get("trainable"):
        return message
    reason = "tool_calls" if struct.get("tool_calls") else "stop"
    return as_item({"finish_reason": reason, "index": 0, "logprobs": None, "message": message})


def _text(value: Any) -> str:
    return storable(value) if isinstance(value, str) else to_text(value)
