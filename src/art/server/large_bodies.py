"""Large request bodies are parsed beside the event loop.

A parser holds the interpreter's lock for as long as one call takes, a second for some 30 MB, whichever thread
calls it. So a large body is read by a thread, and a very large one in pieces: each call of the parser takes
some milliseconds, and between two of them the event loop has its turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, TypeVar

import orjson

from art.errors import RequestError
from art.server.tenancy import Tenant

R = TypeVar("R")

LARGE = 128 * 1024
"""Bytes from which a body is read, and its prompt written, by a thread."""
DEEPEST = 254
"""Levels that a decoded body can be written again with."""
MOST_VALUES = 1_000_000
"""Of a body of more than `_IN_PIECES` bytes, runs of numbers apart: more than a model could read."""
_IN_PIECES = 4 * 1024 * 1024
_MOST_AT_ONCE = 300_000
"""Values that one call of the parser makes in some 30 ms."""
_LONG = 50_000
"""Characters of which rendering takes some 10 ms."""
_THREADS = 2
"""The threads share one interpreter's lock with the event loop."""

_SPACE = re.compile(rb"[ \t\r\n]*")
_NUMBERS = re.compile(rb"[-+0-9.eE, \t\r\n]{1,65536}")
_SCALAR = re.compile(rb"[-+0-9.a-zA-Z]{1,4096}")
_SHORT = re.compile(rb'"[^"\\]{0,1024}"')
_FLAT = re.compile(rb'[\[{](?>[^"{}\[\]]{1,64}+|"(?>[^"\\]{1,64}+|\\.){0,64}+"){0,64}+[}\]]', re.DOTALL)
"""A small list or object that holds no other."""
_PIECE = re.compile(
    rb"(?>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\[^u]|"
    rb'[^"\\]{1,64}+){1,4096}+',
    re.DOTALL,
)
"""Part of a text that ends between two characters, or within one that was not escaped."""


class TenantThreads:
    """Runs what takes long in a thread: one at a time for each tenant, so that they take turns."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="art-beside")
        self._turns: dict[Tenant, asyncio.Lock] = {}
        self._waiting: dict[Tenant, int] = {}

    async def run(self, size: int, tenant: Tenant, work: Callable[..., R], *arguments: Any) -> R:
        """`work(*arguments)`: at once where the `size` of what it reads, in bytes, is small."""
        if size <= LARGE:
            return work(*arguments)
        turn = self._turns.setdefault(tenant, asyncio.Lock())
        self._waiting[tenant] = self._waiting.get(tenant, 0) + 1
        try:
            async with turn:
                return await self._finished(work, *arguments)
        finally:
            self._waiting[tenant] -= 1
            if not self._waiting[tenant]:
                del self._waiting[tenant], self._turns[tenant]

    async def _finished(self, work: Callable[..., R], *arguments: Any) -> R:
        """A thread cannot be stopped: the turn of whoever has gone away lasts until its work has ended."""
        job = self._threads.submit(work, *arguments)
        running = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            job.cancel()  # if it has not begun
            while not running.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([running])
            raise


async def run_in_thread_if_large(size: int, work: Callable[..., R], *arguments: Any) -> R:
    """`work(*arguments)`, in a thread where what it writes is so long that everybody else would wait."""
    if size < _LONG:
        return work(*arguments)
    return await asyncio.to_thread(work, *arguments)


def decode_json(body: bytes) -> Any:
    """The value of a body. Raises: RequestError (400)."""
    if len(body) > _IN_PIECES or (len(body) > LARGE and _marks(body) > _MOST_AT_ONCE):
        return _Pieces(body).read()
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if "depth limit" in str(error):
            raise _too_deep() from error
        raise _invalid(str(error)) from error
    if body.count(b"[") + body.count(b"{") > DEEPEST:
        _check_depth(value)
    return value


def _marks(body: bytes) -> int:
    """No fewer than the values in it."""
    return body.count(b",") + body.count(b"[") + body.count(b"{")


class _Pieces:
    """Reads what the parser reads, by many calls of it."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._values_left = MOST_VALUES

    def read(self) -> Any:
        """The value of the whole body. Raises: RequestError (400)."""
        try:
            value, at = self._value(self._skip(0), 1)
        except orjson.JSONDecodeError as error:
            raise _invalid(str(error)) from error
        if self._skip(at) != len(self._body):
            raise _invalid(f"more follows its value at byte {at}")
        return value

    def _value(self, at: int, depth: int) -> tuple[Any, int]:
        self._count(1)
        mark = self._body[at : at + 1]
        if mark == b'"':
            return self._text(at)
        if mark not in (b"[", b"{"):
            return self._parsed(_SCALAR, at)
        if depth > DEEPEST:
            raise _too_deep()
        flat = _FLAT.match(self._body, at)
        if flat is not None:
            self._count(flat[0].count(b","))
            return orjson.loads(flat[0]), flat.end()
        return self._list(at, depth) if mark == b"[" else self._object(at, depth)

    def _parsed(self, shape: re.Pattern[bytes], at: int) -> tuple[Any, int]:
        found = shape.match(self._body, at)
        if found is None:
            self._refuse(at)
        return orjson.loads(found[0]), found.end()

    def _text(self, at: int) -> tuple[str, int]:
        if self._body[at : at + 1] != b'"':
            self._refuse(at)
        short = _SHORT.match(self._body, at)
        if short is not None:
            return orjson.loads(short[0]), short.end()
        parts: list[str] = []
        at += 1
        while self._body[at : at + 1] != b'"':
            piece = _PIECE.match(self._body, at)
            if piece is None:
                self._refuse(at)
            end = piece.end()
            while end < len(self._body) and self._body[end] & 0xC0 == 0x80 and end > at:
                end -= 1
            if end == at:
                self._refuse(at)
            parts.append(orjson.loads(b'"%b"' % self._body[at:end]))
            at = end
        return "".join(parts), at + 1

    def _list(self, at: int, depth: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        at = self._skip(at + 1)
        if self._body[at : at + 1] == b"]":
            return items, at + 1
        while True:
            run = _NUMBERS.match(self._body, at)
            end = run[0].rfind(b",") if run is not None else -1
            if run is not None and end >= 0:
                numbers = orjson.loads(b"[%b]" % run[0][:end])
                if not numbers:
                    self._refuse(at)
                items += numbers
                at = self._skip(at + end + 1)
                continue
            value, at = self._value(at, depth + 1)
            items.append(value)
            at, ended = self._next_item(at, b"]")
            if ended:
                return items, at

    def _object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        at = self._skip(at + 1)
        if self._body[at : at + 1] == b"}":
            return found, at + 1
        while True:
            name, at = self._text(at)
            at = self._skip(at)
            if self._body[at : at + 1] != b":":
                self._refuse(at)
            found[name], at = self._value(self._skip(at + 1), depth + 1)
            at, ended = self._next_item(at, b"}")
            if ended:
                return found, at

    def _next_item(self, at: int, close: bytes) -> tuple[int, bool]:
        """Returns the start of the next item, or (True) of what follows the whole."""
        at = self._skip(at)
        mark = self._body[at : at + 1]
        if mark == close:
            return at + 1, True
        if mark != b",":
            self._refuse(at)
        return self._skip(at + 1), False

    def _skip(self, at: int) -> int:
        found = _SPACE.match(self._body, at)
        assert found is not None  # it matches nothing as well
        return found.end()

    def _count(self, values: int) -> None:
        self._values_left -= values
        if self._values_left < 0:
            raise RequestError(
                f"the body holds more than {MOST_VALUES} values: no model has room for them",
                status=400,
                code="context_length_exceeded",
            )

    def _refuse(self, at: int) -> NoReturn:
        shown = self._body[at : at + 20]
        raise _invalid(f"unexpected {shown!r} at byte {at}" if shown else "it ends too early")


def _check_depth(value: Any) -> None:
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        # It is read deeper than it is written, and so deep that Python's own recursion ends.
        raise _too_deep() from error


def _too_deep() -> RequestError:
    return RequestError(f"the body is nested more than {DEEPEST} deep", status=400, code="nested_too_deeply")


def _invalid(problem: str) -> RequestError:
    return RequestError(f"the body is not valid JSON: {problem}", status=400, code="invalid_json")
