"""The words of a chat in the types of `openai`: messages, choices and tools; and streams put together again.

Loading this module loads the types of `openai` (about 0.3 s).
"""

from __future__ import annotations

from typing import Annotated

from openai.types.chat import ChatCompletionMessageParam
from openai.types.chat import ChatCompletionToolUnionParam as Tool
from openai.types.chat.chat_completion import Choice
from pydantic import SkipValidation

from art.streamed_completion import (
    IncompleteChatCompletionStreamError,
    consume_chat_completion_stream,
    consume_sync_chat_completion_stream,
    finalize_chat_completion,
    init_chat_completion,
    update_chat_completion,
)

__all__ = [
    "Choice",
    "IncompleteChatCompletionStreamError",
    "Message",
    "MessageOrChoice",
    "Messages",
    "MessagesAndChoices",
    "Tool",
    "Tools",
    "consume_chat_completion_stream",
    "consume_sync_chat_completion_stream",
    "finalize_chat_completion",
    "init_chat_completion",
    "update_chat_completion",
]

Message = Annotated[ChatCompletionMessageParam, SkipValidation]
"""A message as a dict. Pydantic stores it by reference: unknown keys survive."""
MessageOrChoice = Message | Choice
"""A `Choice` is a turn that is trained; a dict is context."""
Messages = list[Message]
MessagesAndChoices = list[MessageOrChoice]
Tools = list[Tool]
