"""The deadline of one call of a chat model: awaited, blocking, or a stream."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextvars import copy_context
from typing import TypeVar

from art.errors import DeadlineError

T = TypeVar("T")


def past_deadline(seconds: float) -> DeadlineError:
    return DeadlineError(
        f"a call of art.langgraph's chat model took more than invoke_timeout={seconds:g} s: give "
        "init_chat_model a larger one, or a smaller max_tokens"
    )


async def awaited_within(seconds: float | None, call: Awaitable[T]) -> T:
    """Returns the call's result. Raises DeadlineError, and cancels the call, after so many seconds."""
    try:
        async with asyncio.timeout(seconds) as deadline:
            return await call
    except TimeoutError as error:
        if seconds is None or not deadline.expired():
            raise
        raise past_deadline(seconds) from error


def called_within(seconds: float | None, call: Callable[[], T]) -> T:
    """Does the same for a call that blocks. A thread runs it, and outlives the deadline until the request's
    own timeout.
    """
    if seconds is None:
        return call()
    answer: Future[T] = Future()
    context = copy_context()

    def run() -> None:
        try:
            answer.set_result(context.run(call))
        except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
            answer.set_exception(error)

    threading.Thread(target=run, name="langgraph call", daemon=True).start()
    try:
        return answer.result(seconds)
    except TimeoutError as error:
        if answer.done():
            raise
        raise past_deadline(seconds) from error


async def streamed_within(seconds: float | None, stream: AsyncIterator[T]) -> AsyncIterator[T]:
    """Yields the parts of a stream. Raises DeadlineError while it waits for a part too late."""
    end = None if seconds is None else asyncio.get_running_loop().time() + seconds
    while True:
        try:
            async with asyncio.timeout_at(end) as deadline:
                part = await anext(stream)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            if seconds is None or not deadline.expired():
                raise
            raise past_deadline(seconds) from error
        yield part


def iterated_within(seconds: float | None, stream: Iterator[T]) -> Iterator[T]:
    """Does the same for a stream that blocks, as soon as its next part comes."""
    end = None if seconds is None else time.monotonic() + seconds
    for part in stream:
        if seconds is not None and end is not None and time.monotonic() > end:
            raise past_deadline(seconds)
        yield part
