"""Who hears the chat completions of this context: at most one listener, the innermost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

    Listener = Callable[[dict[str, Any], ChatCompletion], None]
    """Called with a request's options (`messages`, `tools`, ...) and the completion, once it is whole."""

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
