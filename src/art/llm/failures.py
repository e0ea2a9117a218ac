"""What openai's exceptions mean for somebody who asks: ask again, later, shorter, or never."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from art.errors import (
    ARTError,
    ConfigurationError,
    LlmBusyError,
    LlmError,
    LlmRefusedError,
    LlmTimeoutError,
    LlmTooLongError,
    LlmUnavailableError,
)

if TYPE_CHECKING:
    import openai

BUSY = frozenset({429, 503, 529})
"""529 is Anthropic's "overloaded"."""
DENIED = frozenset({401, 403})
SHOWN = 300
TOO_LONG = ("context_length", "context length", "context window", "maximum context", "too many tokens")
UNSAFE = ("content_filter", "content_policy", "content management policy", "safety system")
NO_MONEY = ("insufficient_quota", "insufficient_balance", "billing_hard_limit")


def typed(error: openai.OpenAIError, name: str, *, key: str | None = None) -> ARTError:
    """The error of ours that says the same. name: of the model that was asked.

    key: what no message may hold, though an endpoint repeats it: messages become logs and reasons.
    """
    import openai

    full = str(error).replace(key, "[the key]") if key else str(error)
    said = full[:SHOWN]
    if isinstance(error, openai.APITimeoutError):
        return LlmTimeoutError(f"{name!r} did not answer in time")
    if isinstance(error, openai.APIStatusError):
        return of_status(error.status_code, said, f"{_code(error)} {full}", error.response.headers, name)
    return LlmUnavailableError(f"{name!r} could not be asked: {said}")


def of_status(status: int, said: str, full: str, headers: Mapping[str, str], name: str) -> ARTError:
    """The same from the parts of an HTTP answer. full: all that it says, with its code."""
    low = full.lower()
    if any(word in low for word in NO_MONEY):
        return ConfigurationError(f"{name!r}: the account behind the key has no money left: {said}")
    if status in BUSY:
        return LlmBusyError(f"{name!r} asks for fewer requests: {said}", retry_after=retry_after(headers))
    if status in DENIED:
        return ConfigurationError(f"{name!r} does not accept the key (HTTP {status}): {said}")
    if 300 <= status < 400:
        place = str(headers.get("location", ""))[:SHOWN]
        return LlmError(
            f"{name!r} redirects to {place!r}, and no redirect is followed: give that address as base_url "
            "if you trust it"
        )
    if status in {408, 409} or status >= 500:
        return LlmUnavailableError(f"{name!r} failed with HTTP {status}: {said}")
    if status == 413 or any(word in low for word in TOO_LONG):
        return LlmTooLongError(f"the question is too long for {name!r}: {said}")
    if any(word in low for word in UNSAFE):
        return LlmRefusedError(f"{name!r} declined: {said}")
    return ConfigurationError(f"{name!r} refuses the request (HTTP {status}): {said}")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, as `Retry-After` (seconds or a date) or `retry-after-ms` says."""
    exact = _number(headers.get("retry-after-ms"))
    if exact is not None:
        return exact / 1000
    told = headers.get("retry-after")
    if told is None or (seconds := _number(told)) is not None:
        return seconds if told is not None else None
    try:
        return max(0.0, parsedate_to_datetime(told).timestamp() - time.time())
    except ValueError:
        return None


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return value if value >= 0 and math.isfinite(value) else None


def _code(error: openai.APIStatusError) -> Any:
    return getattr(error, "code", None) or ""
