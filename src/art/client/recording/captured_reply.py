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

log = logging.getLogger(__name__)


def read_completion(body: bytes, *, streamed: bool) -> ChatCompletion | None:
    """The completion in `body`, or None where it is something else (an error, another API, cut off JSON).

    A choice whose stream was closed early has no `finish_reason`; one whose server told none to the end, but
    sent its [DONE], has "stop".
    """
    if not streamed:
        whole = _loaded(body)
        return _completion(whole) if whole is not None and _choices(whole) else None
    reply = StreamedReply()
    for chunk in _events(body):
        if chunk is None:
            reply.finish()
        else:
            reply.add(chunk)
    return reply.completion()


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


class StreamedReply:
    """A completion in the making. Texts stay in pieces to the end, so long replies cost no more a token."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._choices: dict[int, _StreamedChoice] = {}

    def add(self, chunk: dict[str, Any]) -> None:
        """Take in one chunk."""
        for part in _choices(chunk):
            self._choices.setdefault(part.get("index") or 0, _StreamedChoice()).add(part)
        self._fields |= {key: value for key, value in chunk.items() if key != "choices" and value is not None}

    def finish(self) -> None:
        """Ends the reply after the server has sent all of it."""
        for choice in self._choices.values():
            choice.finish()

    def completion(self) -> ChatCompletion | None:
        """The completion as far as it came; None without any choice."""
        if not self._choices:
            return None
        choices = [choice.assembled(index) for index, choice in sorted(self._choices.items())]
        return _completion({**self._fields, "object": "chat.completion", "choices": choices})


class _StreamedChoice:
    def __init__(self) -> None:
        self._fields: dict[str, Any] = {"finish_reason": None}
        self._message = _Pieces()
        self._calls: dict[int, _Pieces] = {}
        self._functions: dict[int, _Pieces] = {}
        self._old_call = _Pieces()
        self._logprobs = _Pieces()

    def add(self, part: dict[str, Any]) -> None:
        delta = dict(part.get("delta") or {})
        for position, call in enumerate(delta.pop("tool_calls", None) or ()):
            index = call.get("index", position)
            self._calls.setdefault(index, _Pieces()).add(
                {key: value for key, value in call.items() if key not in {"function", "index"}}
            )
            self._functions.setdefault(index, _Pieces()).add(call.get("function") or {})
        self._old_call.add(delta.pop("function_call", None) or {})
        self._message.add(delta)
        self._logprobs.add(part.get("logprobs") or {})
        for key, value in part.items():
            if key not in {"delta", "logprobs", "index"} and value is not None:
                self._fields[key] = value

    def finish(self) -> None:
        """Finishes the choice with its reason or, without one, by itself."""
        self._fields["finish_reason"] = self._fields["finish_reason"] or "stop"

    def assembled(self, index: int) -> dict[str, Any]:
        message = {"role": "assistant", "content": None, **self._message.assembled()}
        if self._calls:
            message["tool_calls"] = [
                {"type": "function", **self._calls[i].assembled(), "function": self._functions[i].assembled()}
                for i in sorted(self._calls)
            ]
            message["content"] = message["content"] or None
        if old_call := self._old_call.assembled():
            message["function_call"] = old_call
        logprobs = self._logprobs.assembled()
        return {
            "index": index,
            **self._fields,
            "message": message,
            "logprobs": {"content": None, "refusal": None, **logprobs} if logprobs else None,
        }


class _Pieces:
    """Fields that come in pieces: texts and lists are put together, of anything else the last one counts."""

    _WHOLE = frozenset({"role", "id", "type"})
    """Texts that come at once; some servers repeat them in every chunk, and names too."""

    def __init__(self) -> None:
        self._pieces: dict[str, list[Any]] = {}

    def add(self, fields: dict[str, Any]) -> None:
        for key, value in fields.items():
            if value is not None:
                self._pieces.setdefault(key, []).append(value)

    def assembled(self) -> dict[str, Any]:
        return {key: self._joined(key, pieces) for key, pieces in self._pieces.items()}

    def _joined(self, key: str, pieces: list[Any]) -> Any:
        repeated = key in self._WHOLE or (key == "name" and len(set(pieces)) == 1)
        if not repeated and all(isinstance(piece, str) for piece in pieces):
            return "".join(pieces)
        if all(isinstance(piece, list) for piece in pieces):
            return [item for piece in pieces for item in piece]
        return pieces[-1]


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
