"""Names for conversations: a hash chain over messages, blind to what clients do to a reply on its way back.

Clients dump and load what they were given: null fields dropped or added, fields like `reasoning_content` or
`sample_id` lost, and whatever `art.wire.message_identity` calls the same message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from art.wire.message_identity import message_identity

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
    functions = (call["function"] for call in message.get("tool_calls") or ())
    calls = ((function["name"], function["arguments"]) for function in functions)
    return message_identity(message["role"], message.get("content") or "", calls)
