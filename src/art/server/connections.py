"""uvicorn's HTTP/1.1 protocol with limits on what one connection may cost before its request is known.

`Intake` lets requests begin a few at a time: a thousand that arrive together would otherwise all be read and
rendered in one turn of the event loop, half a second in which no reply leaves and `/health` is silent. A
request that comes alone waits for nothing. uvicorn itself limits neither the size of a request's head nor the
time that it may take (its httptools protocol), and answers what is no HTTP in a shape of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from art.process.resources import MORE_FILES, file_limit, trim_memory_in_thread
from art.server.http import CLIENT
from art.server.settings import LimitSettings

_LOGGER = logging.getLogger(__name__)
BEGUN_TOGETHER = 16
"""About 5 ms of work."""
SPARE_FILES = 256
"""Descriptors, a quarter of all at most, for the server's own files and for refusals: connections that need
one of them are refused, since nothing works any more in a process that has none left."""
CLOSED = 1000
"""Connections, after whose end freed memory is given back: 7 MB."""
CROWDED_S = 1.0
"""Seconds in which the head of a request must come that will be refused."""


class Intake:
    """The door of the endpoint. One event loop owns it."""

    def __init__(self, together: int = BEGUN_TOGETHER) -> None:
        self._together = together
        self._begun = 0
        """The number of requests that have begun in this turn of the loop."""
        self.waiting: deque[Callable[[], None]] = deque()
        """What begins in a later turn; first come, first served."""
        self.is_crowded = False
        """Whether connections were refused since there were few."""
        self._closed = 0

    def enter(self) -> bool:
        """Returns whether somebody may begin at once; if not, `wait`."""
        if self._begun == 0:
            asyncio.get_running_loop().call_soon(self._next_turn)
        if self.waiting or self._begun >= self._together:
            return False
        self._begun += 1
        return True

    def leave(self) -> None:
        """A connection has ended."""
        self._closed += 1
        if self._closed % CLOSED == 0:
            asyncio.get_running_loop().call_later(1.0, trim_memory_in_thread)

    def _next_turn(self) -> None:
        self._begun = min(self._together, len(self.waiting))
        if self._begun:
            asyncio.get_running_loop().call_soon(self._next_turn)
        for _ in range(self._begun):
            self.waiting.popleft()()


_HEALTH = b"GET /health "
"""Whoever watches the server is never kept waiting."""


def http_protocol(limits: LimitSettings) -> type[HttpToolsProtocol]:
    """uvicorn's protocol for HTTP/1.1 within limits.

    A head that is too long, or does not come in time, ends the connection; so does a body that goes on after
    its reply: some of it is taken and forgotten, since many clients read a refusal only when all is sent.
    What many send at once is read in turns (`Intake`).
    """
    most = file_limit()
    own = {"seconds": limits.head_seconds, "largest_head": limits.max_head_bytes, "intake": Intake()}
    return type("Connection", (_Connection,), {**own, "files": (most - min(SPARE_FILES, most // 4), most)})


class _Client:
    """See `art.server.http.Client`."""

    __slots__ = ("_call", "_connection", "_cycle")

    def __init__(self, connection: _Connection, cycle: RequestResponseCycle) -> None:
        self._connection, self._cycle = connection, cycle
        self._call: Callable[[], None] | None = None

    def has_sent_all(self) -> bool:
        return not self._cycle.more_body

    def when_gone(self, call: Callable[[], None] | None) -> None:
        self._call = call
        if call is not None:
            # Of requests that came together one is answered at a time.
            self._connection.answered = self
            if self._connection.is_lost:
                call()

    def call_back(self) -> None:
        if self._call is not None:
            self._call()


class _Connection(HttpToolsProtocol):
    seconds: float
    largest_head: int
    intake: Intake
    files: tuple[int, int]
    """The descriptors that connections may take, and all that there are."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head, self._head_bytes = False, 0
        self._watch: asyncio.TimerHandle | None = None
        self._early: list[bytes] = []
        """What came before its turn."""
        self.answered: _Client | None = None
        self.is_lost = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        number = transport.get_extra_info("socket").fileno()  # the lowest that was free
        self._is_too_many = number >= self.files[0]
        if self._is_too_many:
            self.seconds = CROWDED_S
            if number >= sum(self.files) // 2:
                transport.abort()
            if not self.intake.is_crowded:
                _LOGGER.warning(
                    "of %d descriptors few are left: connections are refused. %s", self.files[1], MORE_FILES
                )
        self.intake.is_crowded = number > self.files[0] // 2 and (self._is_too_many or self.intake.is_crowded)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # which uvicorn leaves where the client broke the connection off
        self.is_lost = True
        self.intake.leave()
        if self.answered is not None:
            self.answered.call_back()
        if self.cycle is not None:
            # A cycle of references would keep 10 KB, and garbage is collected rarely.
            self.cycle.scope.pop(CLIENT, None)  # type: ignore[misc]
            self.cycle = self.answered = None  # type: ignore[assignment]
            self.scope = None  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self._is_too_many and not data.startswith(_HEALTH):
            self._end(503, "the server has no descriptor left for this connection", "too_many_connections")
        elif self._early:
            self._early.append(data)
        elif data.startswith(_HEALTH) or self.intake.enter():
            self._receive(data)
        else:
            self._early.append(data)
            self._unset_keepalive_if_required()
            self.flow.pause_reading()
            self.intake.waiting.append(self._begin)

    def _begin(self) -> None:
        data = b"".join(self._early)
        self._early.clear()
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self._receive(data)

    def _receive(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self.largest_head:
                self._end(
                    431, f"the request's head is larger than {self.largest_head} bytes", "head_too_large"
                )
                return
        if self._in_head or self.cycle is None or self.cycle.response_complete:
            self._expect_head()

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._expect_nothing()
        super().on_headers_complete()
        if self.cycle is not None and self.cycle.scope is self.scope:
            self.scope[CLIENT] = _Client(self, self.cycle)  # type: ignore[literal-required]

    def send_400_response(self, msg: str) -> None:
        """Sends a 400 for data that is not HTTP."""
        self._end(400, "this is no valid HTTP/1.1 request", "invalid_http")

    def _expect_head(self) -> None:
        if self._watch is None:
            self._watch = self.loop.call_later(self.seconds, self._on_timeout)

    def _expect_nothing(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _on_timeout(self) -> None:
        self._watch = None
        if self.transport.is_closing():
            return
        if self._in_head:
            self._end(408, f"the request's head did not come within {self.seconds:g} s", "head_timeout")
        else:
            self.transport.close()

    def _end(self, status: int, message: str, code: str) -> None:
        """Refuse in OpenAI's shape, outside of any request, and hang up."""
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
        body = orjson.dumps({"error": error})
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body)
        head += b"retry-after: 1\r\n\r\n" if status == 503 else b"\r\n"
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()
