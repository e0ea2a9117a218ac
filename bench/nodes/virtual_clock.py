"""An event loop whose clock jumps to the next timer: hours of waiting pass at once, and always in one order.

No socket, thread or process may be waited for in it. What would run in a thread runs at once
(`InlineExecutor`).
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for nothing: the loop's clock is set on by as long as it was to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("every task waits, and no timer is set: nothing can happen any more")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` starts at 0 and moves by timers alone."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self._clock_resolution = 1e-6  # timers of one moment belong to one turn
        self.set_default_executor(InlineExecutor())

    def time(self) -> float:
        return self._jumping.now


class InlineExecutor(ThreadPoolExecutor):
    """Runs what it is given before `submit` returns."""

    def submit(self, call: Callable[..., T], /, *args: Any, **options: Any) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(call(*args, **options))
        except Exception as error:  # noqa: BLE001  (the future's)
            done.set_exception(error)
        return done


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run in a loop of its own, as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
