"""What is asked of a model that judges or generates, and what it replied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True)
class Request:
    """One question. Equal requests to one model have one answer, which the cache keeps."""

    messages: tuple[Mapping[str, Any], ...]
    """Plain OpenAI messages."""
    schema: Mapping[str, Any] | None = None
    """JSON schema of the answer; None: any text."""
    schema_name: str = "answer"
    max_tokens: int | None = None
    temperature: float | None = None
    salt: str = ""
    """Sets apart a second opinion on the same question: another salt is another entry of the cache."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a reply cost. usd: None where no price is known."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float | None = None


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The text of an answer, as it came: unchecked."""

    text: str
    finish_reason: str | None = None
    usage: Usage = field(default_factory=Usage)
    cached: bool = False


class Llm(Protocol):
    """A model that can be asked, wherever it lives."""

    @property
    def name(self) -> str:
        """As people write it: "openai/o3". Part of the cache's key, of metrics and of logs.

        Further attributes that a model may have: `identity` (what the cache knows it by; None: nothing is
        kept), `pricing` (of its tokens), `max_tokens` (of an answer, whatever the request says), `attempts`
        (at one question).
        """
        ...

    async def complete(self, request: Request) -> Reply:
        """One attempt, without retries.

        Raises: LlmBusyError (429, with the seconds to wait where told), LlmUnavailableError (no answer, 5xx,
        deadline), LlmRefusedError (it declined), ConfigurationError (no key, unknown model, bad request).
        """
        ...
