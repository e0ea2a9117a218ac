"""What the gateway asks of a renderer: messages to ids, ids to a message, and the ids between two turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from art.engine.protocol import Constraint
from art.rendering.images import ImageFormat

Message = Mapping[str, Any]
"""A message as OpenAI's chat API spells it."""

Tool = Mapping[str, Any]
"""A tool as OpenAI's chat API spells it: `{"type": "function", "function": {"name", "parameters", ...}}`."""


SpecialTokensInText = Literal["text", "parse"]
"""`text`: what messages spell is text. `parse`: a special token that they spell is one."""


ToolFormat = Literal["auto", "template"]
"""`auto`: a generic format where the chat template knows no tools. `template`: its own, or none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """One call the model made. `arguments` is its own text: valid JSON, unless it was cut off."""

    name: str
    arguments: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Parsed:
    """A completion read back as a message.

    >>> parsed = Parsed(content="", tool_calls=(ToolCall(name="read", arguments='{"id": 1.0}'),))
    """

    content: str
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    malformed_calls: int = 0
    """Begun calls that cannot be read; their text is in the content."""


class ChatRenderer(Protocol):
    """One model family's chat format over one tokenizer. Every method is pure."""

    @property
    def variant(self) -> str:
        """The format's settings in canonical spelling; empty without settings. Other variants give
        other ids.
        """
        ...

    def with_arguments(
        self,
        arguments: Mapping[str, Any],
        *,
        template: str | None = None,
        special_tokens_in_text: SpecialTokensInText | None = None,
        tool_format: ToolFormat | None = None,
    ) -> ChatRenderer:
        """The format with arguments of its template over its own, or with another template.

        `special_tokens_in_text`: whether what a message spells can be a special token; None: as before.
        `tool_format`: what tells of tools where the template does not; None: as before.
        Raises: RequestError for arguments that the format does not know.
        """
        ...

    def knows(self, name: str) -> bool:
        """Returns whether an argument of this name means something to the format's template."""
        ...

    @property
    def foreign(self) -> bool:
        """A template of a stranger writes the prompts: render in a thread, it may take seconds."""
        ...

    def confined(self) -> ChatRenderer:
        """The format for a stranger, whose template may not use up this process."""
        ...

    @property
    def kind(self) -> str:
        """The name of the format, for messages."""
        ...

    @property
    def images(self) -> ImageFormat | None:
        """The pictures that messages may hold; None: the model sees none."""
        ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ids that end an assistant's turn."""
        ...

    @property
    def longest_token(self) -> int:
        """Characters that one id stands for at most: a text has at least its length by this of tokens."""
        ...

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None, *, generate: bool = True
    ) -> list[int]:
        """The whole conversation, up to where the assistant begins to write (`generate`).

        Raises: RequestError when the format cannot express the messages.
        """
        ...

    def bridge(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[Tool] | None,
    ) -> list[int] | None:
        """`prompt_ids + completion_ids + ids of the new messages`, or None where it cannot be proven safe."""
        ...

    def reply(self, prompt_ids: Sequence[int], message: Message, tools: Sequence[Tool] | None) -> list[int]:
        """The ids that the model would have to sample behind a prompt to say this assistant message.

        Content, reasoning and tool calls, up to and with the id that ends the turn: `parse` of them gives
        the message back. Raises: RequestError when the format cannot express the message.
        """
        ...

    def first_prompt(self, message: Message, tools: Sequence[Tool] | None) -> list[int]:
        """The prompt of a conversation that this assistant message opens. Raises: RequestError."""
        ...

    def parse(
        self,
        completion_ids: Sequence[int],
        prompt_ids: Sequence[int],
        tools: Sequence[Tool] | None,
        *,
        partial: bool = False,
        constrained: bool = False,
    ) -> Parsed:
        """The message that these ids spell.

        Without `tools` nothing is read as a call. Malformed calls stay in the content. `partial`: the ids go
        on, so only what can no longer change is told. `constrained`: a grammar held the reply to calls, so a
        call that has begun is one, with the arguments that are there, also when it was cut off.
        """
        ...

    def grammar(
        self,
        prompt_ids: Sequence[int],
        *,
        text: Constraint | Literal["any"] | None,
        tools: Sequence[Tool],
        parallel: bool,
    ) -> Constraint | None:
        """A reply behind a prompt that is a text (None: it must call), or calls of `tools` that `parse`
        reads and that fit their schemas; where the format thinks first, after a thought.

        None: no grammar of this format says it, or for a text alone, none is needed. Raises: RequestError.
        """
        ...

    def tokenizer_settings(self) -> dict[str, Any]:
        """Special tokens by what they are for, and the chat template, as in `tokenizer_config.json`."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included."""
        ...

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of a text that may hold special tokens, with nothing added around it."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one id stands for."""
        ...
