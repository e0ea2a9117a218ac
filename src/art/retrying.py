"""Try again: a decorator for sync and async functions."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from art.errors import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger(__name__)


def retry(
    max_attempts: int = 3,
    delay: float = 0.25,
    backoff_factor: float = 2.0,
    exceptions: tuple[type[Exception], ...] = (Exception,),
    on_retry: Callable[[Exception, int], None] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Call a function up to `max_attempts` times in all, sleeping `delay * backoff_factor**k` seconds in
    between.

    After the last attempt the original exception is raised. `on_retry(exception, attempt)` replaces the
    warning in the log. Raises ConfigurationError when `max_attempts` is below 1.
    """
    if max_attempts < 1:
        raise ConfigurationError(f"retry(max_attempts={max_attempts!r}): at least 1 call is needed")

    def wait_before(function: Callable[..., object], attempt: int, error: Exception) -> float:
        if on_retry is not None:
            on_retry(error, attempt)
        else:
            name = getattr(function, "__name__", repr(function))
            log.warning("%s: attempt %d of %d failed: %r", name, attempt, max_attempts, error)
        return delay * backoff_factor ** (attempt - 1)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                for attempt in range(1, max_attempts):
                    try:
                        return await function(*args, **kwargs)
                    except exceptions as error:
                        await asyncio.sleep(wait_before(function, attempt, error))
                return await function(*args, **kwargs)

            return cast("Callable[P, R]", call_async)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for attempt in range(1, max_attempts):
                try:
                    return function(*args, **kwargs)
                except exceptions as error:
                    time.sleep(wait_before(function, attempt, error))
            return function(*args, **kwargs)

        return call

    return decorate
