"""The items of a conversation: choices, which were sampled, and messages, which are context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ValidationInfo

from art.wire.headers import SAMPLE_FIELD

if TYPE_CHECKING:
    from art.messages import MessageOrChoice, Messages, MessagesAndChoices


def is_choice(item: Any) -> bool:
    """A turn that was sampled (a `Choice`, also one dumped to a dict), as opposed to a message of the
    context (a dict, or a message object of `openai`).
    """
    if isinstance(item, dict):
        return "finish_reason" in item and "message" in item
    return hasattr(item, "finish_reason") and hasattr(item, "message")


def sample_id(choice: Any) -> str | None:
    """The sample that a choice says it is, or None."""
    fields = (
        choice if isinstance(choice, dict) else vars(choice) | (getattr(choice, "model_extra", None) or {})
    )
    # litellm keeps the fields that it does not know in a dict of its own.
    known = {**(fields.get("provider_specific_fields") or {}), **fields}
    found = known.get(SAMPLE_FIELD)
    return found if isinstance(found, str) and found else None


def get_messages(messages_and_choices: MessagesAndChoices) -> Messages:
    """Plain messages: a choice becomes its assistant message, a missing content becomes the empty text."""
    return [_message(item) for item in messages_and_choices]


def _message(item: MessageOrChoice) -> Any:
    if not is_choice(item):
        plain = item.model_dump(mode="json", exclude_unset=True) if isinstance(item, BaseModel) else item
        message = dict(cast("dict[str, Any]", plain))
        if "content" in message and message["content"] is None:
            message["content"] = ""
        return message
    said = cast("dict[str, Any]", item)["message"] if isinstance(item, dict) else cast(Any, item).message
    dumped = dict(said) if isinstance(said, dict) else said.model_dump(mode="json", exclude_none=True)
    kept = {"role": "assistant", "content": dumped.get("content") or ""}
    # Templates of reasoning models read these back; a template that does not know them ignores them.
    extras = ("tool_calls", "reasoning_content", "reasoning", "refusal", "function_call")
    return kept | {key: dumped[key] for key in extras if dumped.get(key)}


def revive_choices(items: Any) -> Any:
    """Choices that were dumped to JSON become choices again, so that a trajectory survives a round trip."""
    if not isinstance(items, list) or not any(isinstance(item, dict) and is_choice(item) for item in items):
        return items
    from openai.types.chat.chat_completion import Choice

    return [
        Choice.construct(**item) if isinstance(item, dict) and is_choice(item) else item for item in items
    ]


def choices_of_json(items: Any, info: ValidationInfo) -> Any:
    """For fields of turns: JSON has no choices but dicts; a program's own dicts stay what they are."""
    return revive_choices(items) if info.mode == "json" else items
