"""Other people's clients: whatever speaks through httpx (openai, litellm, langchain) is heard in a scope.

The first open scope puts a tap before `send` of the client classes, the last one takes it away. A tap passes
on, untouched, whatever was asked outside of a listener's context.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from art.capture.listening import current_listener, listening
from art.capture.reply import read_completion
from art.capture.response import watch

if TYPE_CHECKING:
    from art.capture.listening import Listener

PACKAGES = ("httpx", "httpx2")
"""openai moved from the first to the second; others stayed."""

_LOCK = threading.Lock()


@contextmanager
def foreign_clients_heard() -> Iterator[None]:
    """Chat completions of all HTTP clients that are asked for inside a `listening` reach the listener."""
    with ExitStack() as taps:
        for name in PACKAGES:
            if find_spec(name) is not None:
                package = import_module(name)
                taps.enter_context(_tapped(package.Client, _Tap))
                taps.enter_context(_tapped(package.AsyncClient, _AsyncTap))
        yield


@contextmanager
def _tapped(kind: Any, make: type[_Tap]) -> Iterator[None]:
    with _LOCK:
        tap = vars(kind)["send"]
        if not isinstance(tap, _Tap):
            tap = kind.send = make(tap)
        tap.scopes += 1
    try:
        yield
    finally:
        with _LOCK:
            tap.scopes -= 1
            # If somebody wrapped the tap since, it stays inside their wrapper, where it hears nobody.
            if not tap.scopes and vars(kind)["send"] is tap:
                kind.send = tap.send


class _Tap:
    """A method `send` that lets the current listener hear the response."""

    def __init__(self, send: Any) -> None:
        self.send = send
        self.scopes = 0

    def __get__(self, client: Any, kind: type | None = None) -> Any:
        return self if client is None else partial(self._heard, client)

    def __call__(self, client: Any, *args: Any, **options: Any) -> Any:
        return self._heard(client, *args, **options)

    def _heard(self, client: Any, request: Any, *args: Any, **options: Any) -> Any:
        listener = current_listener()
        with listening(None):  # a client that sends through another client is heard once
            response = self.send(client, request, *args, **options)
        _hear(listener, request, response)
        return response


class _AsyncTap(_Tap):
    async def _heard(self, client: Any, request: Any, *args: Any, **options: Any) -> Any:
        listener = current_listener()
        with listening(None):
            response = await self.send(client, request, *args, **options)
        _hear(listener, request, response)
        return response


def _hear(listener: Listener | None, request: Any, response: Any) -> None:
    asked = _chat_request(request) if listener is not None and response.is_success else None
    if listener is None or asked is None:
        return

    def tell(body: bytes) -> None:
        kind = response.headers.get("content-type", "")
        # Some servers stream under any type, others answer whole whatever is asked.
        streamed = "event-stream" in kind or (bool(asked.get("stream")) and "json" not in kind)
        completion = read_completion(body, streamed=streamed)
        if completion is not None:
            listener.hear(asked, completion)

    if (reading := watch(response, tell)) is not None:
        listener.follow(partial(reading.settle, tell))


def _chat_request(request: Any) -> dict[str, Any] | None:
    """The body of a chat request; None for any other request."""
    if request.method != "POST" or "json" not in request.headers.get("content-type", ""):
        return None
    try:
        body = json.loads(request.content)
    except (ValueError, RuntimeError):  # no JSON after all, or a body that is sent as a stream
        return None
    return body if isinstance(body, dict) and isinstance(body.get("messages"), list) else None
