"""Taps on HTTP clients: what a program asks of a model through httpx, aiohttp or requests is heard.

A tap stands before the method of a client's class that sends a request, from the first open scope to the
last. It passes on, untouched, whatever is asked outside of a listener's context.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, cast

from art.errors import is_installed
from art.exchanges import AnsweredBy, Dialect
from art.recording.captured_reply import hear_reply, note_call, read_reply
from art.recording.listeners import Listener, current_listener, listening
from art.recording.watched_bodies import (
    BodyReader,
    BodyWatch,
    watch_aiohttp_body,
    watch_body,
    watch_requests_body,
)

_log = logging.getLogger(__name__)
_LOCK = threading.Lock()
_PATH = re.compile(r"(.*?)/(chat/completions|completions|responses|messages)/?(?:\?.*)?\Z")


@contextmanager
def capture_foreign_clients() -> Iterator[None]:
    """Calls of all HTTP clients that are made inside a `listening` reach the listener."""
    with ExitStack() as taps:
        for package, kind, method, tap in _TAPPED:
            # A program may have a stand-in in place of a package.
            of_clients = getattr(import_module(package), kind, None) if is_installed(package) else None
            if of_clients is not None and method in vars(of_clients):
                taps.enter_context(_tapped(of_clients, method, tap))
        yield


@contextmanager
def _tapped(kind: Any, method: str, make: type[_Tap]) -> Iterator[None]:
    with _LOCK:
        tap = vars(kind)[method]
        if not isinstance(tap, _Tap):
            tap = make(tap)
            setattr(kind, method, tap)
        tap.scopes += 1
    try:
        yield
    finally:
        with _LOCK:
            tap.scopes -= 1
            # If somebody wrapped the tap since, it stays inside their wrapper, where it hears nobody.
            if not tap.scopes and vars(kind)[method] is tap:
                setattr(kind, method, tap.send)


@dataclass(frozen=True, kw_only=True)
class _Call:
    """A call of a model's API, and how to watch the body of its response."""

    dialect: Dialect
    request: dict[str, Any]
    answered_by: AnsweredBy
    streams: bool
    """Whether the reply comes in events."""
    watch: Callable[[BodyReader], BodyWatch | None]


class _Tap:
    """A method that sends a request, and lets the current listener hear the response."""

    def __init__(self, send: Any) -> None:
        self.send = send
        self.scopes = 0

    def __get__(self, client: Any, kind: type | None = None) -> Any:
        return self if client is None else partial(self._send_recorded, client)

    def __call__(self, client: Any, *args: Any, **options: Any) -> Any:
        return self._send_recorded(client, *args, **options)

    def _send_recorded(self, client: Any, *args: Any, **options: Any) -> Any:
        listener, started_at = current_listener(), time.time()
        with listening(None):  # a client that sends through another client is heard once
            response = self.send(client, *args, **options)
        if listener is not None:
            _record_reply(listener, self.call_of(response, options), started_at)
        return response

    def call_of(self, response: Any, options: Mapping[str, Any]) -> _Call | None:
        """Returns the call that a response of httpx answers; None where it is no call of a model's API."""
        request = response.request
        try:
            sent = request.content
        except RuntimeError:  # a body that is sent as a stream
            return None
        watch = partial(watch_body, response)
        return _call(response.is_success, request, sent, str(request.url), response.headers, watch)


class _AsyncTap(_Tap):
    async def _send_recorded(self, client: Any, *args: Any, **options: Any) -> Any:
        listener, started_at = current_listener(), time.time()
        with listening(None):
            response = await self.send(client, *args, **options)
        if listener is not None:
            _record_reply(listener, self.call_of(response, options), started_at)
        return response


class _AiohttpTap(_AsyncTap):
    def call_of(self, response: Any, options: Mapping[str, Any]) -> _Call | None:
        sent = options.get("json") if options.get("json") is not None else options.get("data")
        watch = partial(watch_aiohttp_body, response)
        asked, headers = response.request_info, response.headers
        return _call(response.ok, asked, sent, str(asked.url), headers, watch)


class _RequestsTap(_Tap):
    def call_of(self, response: Any, options: Mapping[str, Any]) -> _Call | None:
        asked = response.request
        watch = partial(watch_requests_body, response)
        return _call(response.ok, asked, asked.body, asked.url or "", response.headers, watch)


_TAPPED = (
    # openai moved from httpx to httpx2; others stayed.
    ("httpx", "Client", "send", _Tap),
    ("httpx", "AsyncClient", "send", _AsyncTap),
    ("httpx2", "Client", "send", _Tap),
    ("httpx2", "AsyncClient", "send", _AsyncTap),
    ("aiohttp", "ClientSession", "_request", _AiohttpTap),
    ("requests", "Session", "send", _RequestsTap),
)


def _call(
    succeeded: bool, request: Any, sent: Any, url: str, headers: Mapping[str, str], watch: Any
) -> _Call | None:
    """request: of any client, with `method` and `headers`. sent: its body, as bytes, a text or a dict."""
    if not succeeded or request.method != "POST":
        return None
    body = _json_object(sent)
    place = _PATH.match(url)
    if body is None or (place is None and not isinstance(body.get("messages"), list)):
        return None
    # Servers have chat completions at paths of their own.
    base, dialect = (place[1], place[2].replace("/", "_")) if place is not None else ("", "chat_completions")
    kind = headers.get("content-type", "")
    # Some servers stream under any type, others answer whole whatever is asked.
    streams = "event-stream" in kind or (bool(body.get("stream")) and "json" not in kind)
    asked = request.headers
    key = asked.get("authorization", "").removeprefix("Bearer ") or asked.get("x-api-key", "")
    return _Call(
        dialect=cast("Dialect", dialect),
        request=body,
        answered_by=AnsweredBy(base, key),
        streams=streams,
        watch=watch,
    )


def _json_object(sent: Any) -> dict[str, Any] | None:
    if isinstance(sent, str | bytes | bytearray):
        try:
            sent = json.loads(sent)
        except ValueError:
            return None
    return sent if isinstance(sent, dict) else None


def _record_reply(listener: Listener, call: _Call | None, started_at: float) -> None:
    if call is None:
        return

    def hear_body(body: bytes) -> None:
        try:
            reply = read_reply(call.dialect, body, streamed=call.streams)
            if reply is not None:
                if call.dialect == "chat_completions":
                    note_call(reply, started_at)
                hear_reply(listener, call.dialect, call.request, reply, started_at, call.answered_by)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            # A server may answer anything; the program that asked reads it as it likes.
            _log.warning("a call of %s is not recorded: %.500r", call.answered_by.base_url, error)

    if (reading := call.watch(hear_body)) is not None:
        listener.on_close.append(partial(reading.hand_over, hear_body))
