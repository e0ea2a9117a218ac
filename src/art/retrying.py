"""`retry` calls a failed function again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import tenacity

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

    def report_failure(state: tenacity.RetryCallState) -> None:
        assert state.outcome is not None
        error, attempt = cast("Exception", state.outcome.exception()), state.attempt_number
        if on_retry is not None:
            on_retry(error, attempt)
            return
        name = getattr(state.fn, "__name__", repr(state.fn))
        log.warning("%s: attempt %d of %d failed: %r", name, attempt, max_attempts, error)

    return tenacity.retry(
        stop=tenacity.stop_after_attempt(max_attempts),
        wait=tenacity.wait_exponential(multiplier=delay, exp_base=backoff_factor),
        retry=tenacity.retry_if_exception_type(exceptions),
        before_sleep=report_failure,
        reraise=True,
    )
