"""Who hears the calls that are made here: at most one listener, the innermost of the context."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from art.exchanges import RecordedExchange


class Listener(Protocol):
    """Receives calls in the order in which they are answered."""

    on_close: list[Callable[[], None]]
    """A callback for each stream that has begun: it lets the listener hear at once what was read so far."""

    def on_exchange(self, exchange: RecordedExchange) -> None:
        """A call with its reply, once that is complete. Chat completions come also when their stream was
        closed before: their choices have no `finish_reason`.
        """


_LISTENER: ContextVar[Listener | None] = ContextVar("art_listener", default=None)


def current_listener() -> Listener | None:
    """Returns the listener of the calls made here, or None."""
    return _LISTENER.get()


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Calls made inside are heard by `listener` alone; None: by nobody."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)
