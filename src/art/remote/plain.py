"""Messages and tools of a trajectory as JSON, the way OpenAI's chat API spells them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError
from art.trajectories import get_messages

if TYPE_CHECKING:
    from art.messages import MessagesAndChoices


def plain_messages(name: str, items: MessagesAndChoices) -> list[dict[str, Any]]:
    """A choice is the assistant message that it holds. `name`: whose they are.

    Raises ConfigurationError for what is no message, or cannot be sent.
    """
    messages: list[dict[str, Any]] = _json(name, get_messages(items))
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            raise ConfigurationError(f"{name}: message {number} is {message!r}, no message")
        if message.get("reasoning") and not message.get("reasoning_content"):
            message["reasoning_content"] = message.pop("reasoning")
    return messages


def plain_tools(name: str, tools: Sequence[Any] | None) -> list[dict[str, Any]] | None:
    """A bare function schema is wrapped as the API has it. Raises ConfigurationError."""
    return [_tool(one) for one in _json(name, list(tools))] if tools else None


def _json(name: str, value: Any) -> Any:
    """Messages may hold parts of `openai`'s replies as they came."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return to_jsonable_python(value, exclude_none=True)
    except PydanticSerializationError as error:
        raise ConfigurationError(f"{name} holds something that cannot be sent: {error}") from error


def _tool(tool: Any) -> Any:
    if isinstance(tool, dict) and "function" not in tool and "name" in tool:
        return {"type": "function", "function": tool}
    return tool
