"""What attempts are really worth, as somebody who knew it wrote it down."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from art.testing.prompt import text_of


def fingerprint(messages: Sequence[Mapping[str, Any]]) -> str:
    """The same for the same conversation: roles, texts, tool calls by name and arguments, without ids."""
    plain = [
        [message["role"], text_of(message), *map(_call, message.get("tool_calls") or [])]
        for message in messages
    ]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()


class KnownQualities:
    """A quality function for what no judge can see in the messages: each attempt's worth, noted beforehand.

    >>> truth = KnownQualities()
    >>> truth.note([{"role": "user", "content": "hi"}], 1.0)
    >>> truth([{"role": "user", "content": "hi"}])
    1.0
    """

    def __init__(self) -> None:
        self._qualities: dict[str, float] = {}

    def note(self, messages: Sequence[Mapping[str, Any]], quality: float) -> None:
        """Remember the quality, 0 to 1, of the attempt with these messages, as the judge will see them.

        Raises ValueError where equal messages were noted with another quality: then the truth is not a
        function of what the judge sees.
        """
        known = self._qualities.setdefault(fingerprint(messages), quality)
        if known != quality:
            raise ValueError(f"equal messages were noted with quality {known!r} and now with {quality!r}")

    def __call__(self, messages: Sequence[Mapping[str, Any]]) -> float:
        """Raises KeyError for messages that nobody noted."""
        return self._qualities[fingerprint(messages)]


def _call(call: Mapping[str, Any]) -> list[Any]:
    """Name and arguments of a tool call; arguments that are JSON are compared as values."""
    function = call.get("function") or {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError:
            arguments = [arguments]
    return [function.get("name"), json.dumps(arguments, sort_keys=True)]
