"""What a server said, in the error: a decorator for functions that use httpx."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

from art.errors import ServerError

P = ParamSpec("P")
R = TypeVar("R")


def log_http_errors(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """Turn httpx's HTTPStatusError into a ServerError "[HTTP 404] <url> <what the server said>"."""

    @functools.wraps(function)
    async def telling(*args: P.args, **kwargs: P.kwargs) -> R:
        import httpx

        try:
            return await function(*args, **kwargs)
        except httpx.HTTPStatusError as error:
            status, url = error.response.status_code, error.request.url
            said = await _detail(error.response)
            raise ServerError(f"[HTTP {status}] {url} {said}", status=status) from error

    return telling


async def _detail(response: Any) -> str:
    if not response.is_closed:  # of a stream nothing is read yet
        await response.aread()
    try:
        body = response.json()
    except ValueError:
        return str(response.text)
    return str(body.get("detail", body)) if isinstance(body, dict) else str(body)
