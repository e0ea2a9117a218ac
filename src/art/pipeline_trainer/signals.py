"""SIGINT and SIGTERM as a polite request; the second one is what it always was."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_log = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Inside, the first signal calls `stop`, and later ones have their earlier effect again.

    Nothing is changed outside the main thread, or where the event loop knows no signals (Windows).
    """
    loop, before = asyncio.get_running_loop(), {one: signal.getsignal(one) for one in SIGNALS}

    def restore() -> None:
        for one, handler in before.items():
            loop.remove_signal_handler(one)
            signal.signal(one, handler)

    def received(one: signal.Signals) -> None:
        _log.warning("%s: current work is finished first; once more ends it at once", one.name)
        restore()
        stop()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        for one in SIGNALS:
            loop.add_signal_handler(one, received, one)
    except NotImplementedError:
        yield
        return
    try:
        yield
    finally:
        restore()
