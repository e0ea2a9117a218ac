"""Names for conversations: a hash chain over messages, blind to what clients do to a reply on its way back.

Clients dump and load what they were given: `content` null or empty, null fields dropped or added, other key
order, arguments parsed and written again, fields like `reasoning_content` or `sample_id` lost. None of that
makes it another conversation. Other text does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

DIGEST = 16
"""Bytes of a key."""


@dataclass(frozen=True, slots=True)
class Turn:
    """An assistant message: its index, and the key of the conversation that ends with it."""

    index: int
    key: bytes


class Conversation:
    """The keys of one request's messages."""

    __slots__ = ("_chain", "turns")

    def __init__(self, base_model: str, messages: Sequence[Mapping[str, Any]]) -> None:
        self._chain = hashlib.blake2b(base_model.encode(), digest_size=DIGEST)
        self.turns: list[Turn] = []
        for index, message in enumerate(messages):
            self._chain.update(_canonical(message))
            if message["role"] == "assistant":
                self.turns.append(Turn(index, self._chain.digest()))

    @classmethod
    def of_ids(cls, base_model: str, ids: bytes) -> Conversation:
        """A prompt that is no conversation: no messages have its key."""
        raw = cls(f"\0ids\0{base_model}", ())
        raw._chain.update(ids)
        return raw

    @property
    def key(self) -> bytes:
        """Key of all messages."""
        return self._chain.digest()

    def key_with(self, reply: Mapping[str, Any]) -> bytes:
        """Key of all messages and an assistant's reply to them."""
        chain = self._chain.copy()
        chain.update(_canonical(reply))
        return chain.digest()


def tools_key(tools: Sequence[Mapping[str, Any]] | None) -> bytes:
    """Key of a request's tools; empty without."""
    return tools_key_and_size(tools)[0]


def tools_key_and_size(tools: Sequence[Mapping[str, Any]] | None) -> tuple[bytes, int]:
    """Their key, and the bytes of their JSON. Raises: TypeError."""
    if not tools:
        return b"", 0
    chain = hashlib.blake2b(b"[", digest_size=DIGEST)
    size = 0
    for number, tool in enumerate(tools):
        spelled = orjson.dumps(tool, option=orjson.OPT_SORT_KEYS)
        chain.update(b"," + spelled if number else spelled)
        size += len(spelled)
    chain.update(b"]")
    return chain.digest(), size


def _canonical(message: Mapping[str, Any]) -> bytes:
    """Length-prefixed, so that no text can pretend to be the end of a field."""
    content = (message.get("content") or "").encode("utf-8", "surrogatepass")
    head = b"%s %d:" % (message["role"].encode(), len(content))
    calls = message.get("tool_calls")
    if not calls:
        return head + content
    parts = [head, content]
    for call in calls:
        function = call["function"]
        spelled = f"{function['name']} {_arguments(function['arguments'])}".encode("utf-8", "surrogatepass")
        parts.append(b"call %d:" % len(spelled))
        parts.append(spelled)
    return b"".join(parts)


def _arguments(text: str) -> str:
    """Arguments as any JSON library would understand them: 1e3, 1000 and 1000.0 are one number."""
    try:
        return orjson.dumps(_plain(orjson.loads(text)), option=orjson.OPT_SORT_KEYS).decode()
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, RecursionError):
        return text


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
