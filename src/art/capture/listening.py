"""Who hears the chat completions of this context: at most one listener, the innermost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion


class Listener(Protocol):
    """Hears completions in the order in which they are complete."""

    def hear(self, request: dict[str, Any], completion: ChatCompletion) -> None:
        """A completion, once it is whole or its stream was closed. request: `messages`, `tools`, ..."""

    def follow(self, settle: Callable[[], None]) -> None:
        """A stream has begun; calling `settle` lets the listener hear at once what was read of it so far."""


_LISTENER: ContextVar[Listener | None] = ContextVar("art_listener", default=None)


def current_listener() -> Listener | None:
    """Who hears the completions asked for here, or None."""
    return _LISTENER.get()


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Completions asked for inside are heard by `listener` alone; None: by nobody."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)
