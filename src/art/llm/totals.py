"""What a channel has done so far."""

from __future__ import annotations

from dataclasses import dataclass

from art.llm.request import Usage


@dataclass
class Totals:
    """Counts since the channel was made. usd: of the answers whose price is known."""

    calls: int = 0
    """Attempts at the model."""
    cached: int = 0
    """Questions whose answer was kept, or came with an equal question under way."""
    retries: int = 0
    failures: int = 0
    """Questions that got no answer."""
    repairs: int = 0
    """Answers that were asked for again because of their form."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float = 0.0

    def add(self, usage: Usage) -> None:
        self.prompt_tokens += usage.prompt_tokens
        self.completion_tokens += usage.completion_tokens
        self.usd += usage.usd or 0.0
