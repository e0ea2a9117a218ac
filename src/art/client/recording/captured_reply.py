"""A chat completion from the bytes of a response that somebody else reads, whole or streamed.

The body is kept piece by piece; who asked for it is called once, when it is complete.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, closing
from typing import Any

from openai.types.chat import ChatCompletion
from pydantic import ValidationError

from art.streamed_completion import update_chat_completion

log = logging.getLogger(__name__)


def read_completion(body: bytes, *, streamed: bool) -> ChatCompletion | None:
    """The completion in `body`, or None where it is something else (an error, another API, cut off JSON).

    A choice whose stream was closed early has no `finish_reason`; one whose server told none to the end, but
    sent its [DONE], has "stop".
    """
    if not streamed:
        whole = _loaded(body)
        return _completion(whole) if whole is not None and _choices(whole) else None
    reply, complete = ChatCompletion.construct(object="chat.completion", choices=[]), False
    for chunk in _events(body):
        if chunk is None:
            complete = True
        else:
            update_chat_completion(reply, {**chunk, "choices": _choices(chunk)})
    return _completion(_reply_fields(reply, complete=complete)) if reply.choices else None


def _reply_fields(reply: ChatCompletion, *, complete: bool) -> dict[str, Any]:
    """The fields of a streamed reply, without gaps in the numbers of its calls."""
    fields = reply.model_dump(warnings=False)
    for choice in fields["choices"]:
        if complete:
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        message = choice["message"]
        if calls := message.get("tool_calls"):
            kept = [call for call in calls if call["id"] or any(call["function"].values())]
            message.update(tool_calls=kept or None, content=message["content"] or None)
    return fields


def _completion(fields: dict[str, Any]) -> ChatCompletion:
    try:
        return ChatCompletion.model_validate(fields)
    except ValidationError:  # other servers leave fields out
        return ChatCompletion.construct(**fields)


def _events(body: bytes) -> Iterator[dict[str, Any] | None]:
    """The chunks, and None for the [DONE] of a server that told of no error."""
    failed = False
    for line in body.splitlines():
        name, _, data = line.partition(b":")
        if name != b"data":
            continue
        if data.strip() == b"[DONE]":
            if not failed:
                yield None
            return
        chunk = _loaded(data)
        if chunk is not None:
            failed = failed or bool(chunk.get("error"))
            yield chunk


def _loaded(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError as error:
        log.debug("not a completion: %s", error)
        return None
    return value if isinstance(value, dict) else None


def _choices(fields: dict[str, Any]) -> list[dict[str, Any]]:
    choices = fields.get("choices")
    return [item for item in choices if isinstance(item, dict)] if isinstance(choices, list) else []


BodyReader = Callable[[bytes], None]

_DONE = re.compile(rb"(?:\A|[\r\n])data: ?\[DONE\]")
"""The last event of a stream of completions. Texts inside of events have no raw line breaks."""
_TAIL = len(b"\ndata: [DONE]") - 1


def watch_body(response: Any, *tellers: BodyReader) -> BodyWatch | None:
    """Call each of `tellers` once with the decoded body of an httpx response, at once if it was already read.

    Otherwise when a stream's last event was read or its reader closes the response, which reading to the end
    does; the body is then what was read. Only this response is touched, not its class.
    """
    try:
        body = response.content
    except RuntimeError:  # httpx and httpx2 each have a ResponseNotRead; this is what they share
        return BodyWatch(response, tellers)
    for tell in tellers:
        tell(body)
    return None


class BodyWatch:
    """Reads a response's pieces for an observer, between the response and its reader. The pieces are joined
    once, at the end.
    """

    def __init__(self, response: Any, tellers: tuple[BodyReader, ...]) -> None:
        self._response, self._tellers = response, list(tellers)
        self._pieces: list[bytes] = []
        self._tail = b""
        self._iter, self._aiter = response.iter_bytes, response.aiter_bytes
        self._close, self._aclose = response.close, response.aclose
        response.iter_bytes, response.aiter_bytes = self.iter_bytes, self.aiter_bytes
        response.close, response.aclose = self.close, self.aclose

    def hand_over(self, tell: BodyReader) -> None:
        """Passes what was read so far to one of the observers, unless it has it already."""
        if tell in self._tellers:
            self._tellers.remove(tell)
            tell(b"".join(self._pieces))

    def iter_bytes(self, chunk_size: int | None = None) -> Iterator[bytes]:
        with closing(self._iter(chunk_size)) as pieces:
            for piece in pieces:
                self._add_piece(piece)
                yield piece

    async def aiter_bytes(self, chunk_size: int | None = None) -> AsyncIterator[bytes]:
        async with aclosing(self._aiter(chunk_size)) as pieces:
            async for piece in pieces:
                self._add_piece(piece)
                yield piece

    def close(self) -> None:
        self._close()
        self._end()

    async def aclose(self) -> None:
        await self._aclose()
        self._end()

    def _add_piece(self, piece: bytes) -> None:
        if not self._tellers:
            return
        self._pieces.append(piece)
        recent = self._tail + piece
        self._tail = recent[-_TAIL:]
        if _DONE.search(recent):  # some readers stop here and never close
            self._end()

    def _end(self) -> None:
        for name in ("iter_bytes", "aiter_bytes", "close", "aclose"):
            vars(self._response).pop(name, None)  # the response's own methods show again
        for tell in list(self._tellers):
            self.hand_over(tell)
        self._pieces.clear()
