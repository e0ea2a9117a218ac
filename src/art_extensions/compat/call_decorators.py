"""Decorators of older programs for functions that ask others.

`limit_concurrency` lets calls of an async function wait for each other, `log_http_errors` puts what a server
said into the error.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ParamSpec, TypeVar

from art.errors import ConfigurationError, ServerError

P = ParamSpec("P")
R = TypeVar("R")


class _Gate:
    """A semaphore, and how many calls hold it or wait for it."""

    def __init__(self, n: int) -> None:
        self.semaphore = asyncio.Semaphore(n)
        self.users = 0


class _Gates:
    """A gate for each event loop and key that is in use."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._gates: dict[tuple[int, str], _Gate] = {}

    @asynccontextmanager
    async def pass_through(self, key: str) -> AsyncIterator[None]:
        place = (id(asyncio.get_running_loop()), key)
        gate = self._gates.setdefault(place, _Gate(self._n))
        gate.users += 1
        try:
            async with gate.semaphore:
                yield
        finally:
            gate.users -= 1
            if not gate.users:
                del self._gates[place]


def limit_concurrency(
    n: int, derive_key: Callable[..., str] | None = None
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
    """Limits concurrent calls to `n`; others wait. `derive_key(*args, **kwargs)`: `n` for each key.

    Raises ConfigurationError when `n` is below 1.
    """
    if n < 1:
        raise ConfigurationError(f"limit_concurrency({n!r}): at least 1 call must be able to run")

    def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        gates = _Gates(n)

        @functools.wraps(function)
        async def limited(*args: P.args, **kwargs: P.kwargs) -> R:
            key = "default" if derive_key is None else derive_key(*args, **kwargs)
            async with gates.pass_through(key):
                return await function(*args, **kwargs)

        return limited

    return decorate


def log_http_errors(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """Converts httpx's HTTPStatusError to a ServerError "[HTTP 404] <url> <the server's message>"."""

    @functools.wraps(function)
    async def telling(*args: P.args, **kwargs: P.kwargs) -> R:
        import httpx

        try:
            return await function(*args, **kwargs)
        except httpx.HTTPStatusError as error:
            status, url = error.response.status_code, error.request.url
            said = await _error_detail(error.response)
            raise ServerError(f"[HTTP {status}] {url} {said}", status=status) from error

    return telling


async def _error_detail(response: Any) -> str:
    if not response.is_closed:  # of a stream nothing is read yet
        await response.aread()
    try:
        body = response.json()
    except (ValueError, RecursionError):
        return str(response.text)
    return str(body.get("detail", body)) if isinstance(body, dict) else str(body)
