"""One conversation of an agent: messages, which are context, and choices, which were sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, field_validator

from art.types import choices_of_json, get_messages

if TYPE_CHECKING:
    from art.openai import Messages
    from art.openai import MessagesAndChoices as MessagesAndChoices
    from art.openai import Tools as Tools
else:
    # Pydantic keeps the items as they are: dicts by reference with unknown keys, choices with their extra
    # fields.
    MessagesAndChoices = list[Any]
    Tools = list[Any]


class History(BaseModel):
    """One conversation. A trajectory with sub-agents or a compacted context has several."""

    messages_and_choices: MessagesAndChoices
    tools: Tools | None = None

    _choices = field_validator("messages_and_choices", mode="before")(choices_of_json)

    def messages(self) -> Messages:
        """Returns the conversation as plain messages."""
        return get_messages(self.messages_and_choices)
