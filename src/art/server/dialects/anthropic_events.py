"""The events of a streamed Anthropic message: blocks are opened, grow and are closed, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Event = dict[str, Any]

_EMPTY: dict[str, dict[str, Any]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}


class MessageEvents:
    """Writes one message's events, and knows which block is open."""

    def __init__(self) -> None:
        self._index = -1
        self._open: str | None = None

    def start(self, message: Mapping[str, Any]) -> Iterator[Event]:
        """The message with no content yet."""
        yield {"type": "message_start", "message": dict(message)}

    def text(self, new: str) -> Iterator[Event]:
        """More of the text."""
        yield from self._within("text")
        yield self._delta({"type": "text_delta", "text": new})

    def thinking(self, new: str) -> Iterator[Event]:
        """More of the thinking."""
        yield from self._within("thinking")
        yield self._delta({"type": "thinking_delta", "thinking": new})

    def call(self, call: Mapping[str, Any]) -> Iterator[Event]:
        """A call begins, as chat spells it."""
        yield from self._close()
        block = {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": {}}
        yield from self._begin("tool_use", block)

    def arguments(self, new: str) -> Iterator[Event]:
        """More of the call's arguments: the text that the model wrote."""
        yield self._delta({"type": "input_json_delta", "partial_json": new})

    def end(self, stop: Mapping[str, Any], usage: Mapping[str, Any]) -> Iterator[Event]:
        """The reason of the end, and the end."""
        yield from self._close()
        yield {"type": "message_delta", "delta": dict(stop), "usage": dict(usage)}
        yield {"type": "message_stop"}

    def _within(self, kind: str) -> Iterator[Event]:
        if self._open != kind:
            yield from self._close()
            yield from self._begin(kind, _EMPTY[kind])

    def _begin(self, kind: str, block: Mapping[str, Any]) -> Iterator[Event]:
        self._index += 1
        self._open = kind
        yield {"type": "content_block_start", "index": self._index, "content_block": dict(block)}

    def _close(self) -> Iterator[Event]:
        if self._open is not None:
            self._open = None
            yield {"type": "content_block_stop", "index": self._index}

    def _delta(self, delta: Mapping[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": self._index, "delta": dict(delta)}
