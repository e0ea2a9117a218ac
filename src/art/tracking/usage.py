"""What a response of an API says about its tokens and its price. Objects and dicts are read alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TokenUsage:
    """Tokens by what is asked for them; each token is in one of the five."""

    prompt: float = 0.0
    completion: float = 0.0
    cached_prompt: float = 0.0
    """Read from a cache that the provider keeps by itself (OpenAI)."""
    cache_creation: float = 0.0
    cache_read: float = 0.0
    """Written to and read from a cache that the caller asked for (Anthropic)."""


def field(value: Any, *path: str) -> Any:
    """The value at a path of attributes or keys, extra fields (`model_extra`) included.

    None if there is none.
    """
    for name in path:
        extra = getattr(value, "model_extra", None)
        found = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
        value = extra.get(name) if found is None and isinstance(extra, Mapping) else found
    return value


def stated_cost(response: Any) -> float | None:
    """The price that the response itself tells, as OpenRouter's `usage.cost`."""
    for found in (field(response, "usage", "cost"), field(response, "cost")):
        if isinstance(found, int | float) and not isinstance(found, bool):
            return float(found)
    return None


def token_usage(response: Any, provider: str) -> TokenUsage | None:
    """The tokens of a response: OpenAI's chat and responses APIs, Anthropic's messages; None without usage.

    OpenAI counts cached tokens as part of the prompt, Anthropic beside it.
    """
    usage = field(response, "usage")
    if usage is None:
        return None
    if field(usage, "prompt_tokens") is not None:
        cached = _count(field(usage, "prompt_tokens_details", "cached_tokens"))
        return TokenUsage(
            prompt=_count(field(usage, "prompt_tokens")) - cached,
            cached_prompt=cached,
            completion=_count(field(usage, "completion_tokens")),
        )
    if field(usage, "input_tokens") is None:
        return None
    prompt, completion = _count(field(usage, "input_tokens")), _count(field(usage, "output_tokens"))
    if provider != "anthropic" and field(usage, "cache_read_input_tokens") is None:
        cached = _count(field(usage, "input_tokens_details", "cached_tokens"))
        return TokenUsage(prompt=prompt - cached, cached_prompt=cached, completion=completion)
    return TokenUsage(
        prompt=prompt,
        completion=completion,
        cache_creation=_count(field(usage, "cache_creation_input_tokens")),
        cache_read=_count(field(usage, "cache_read_input_tokens")),
    )


def _count(value: Any) -> float:
    return float(value or 0)
