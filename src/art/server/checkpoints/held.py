"""A lock that is waited for with a deadline."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from art.errors import RequestError


@contextlib.asynccontextmanager
async def held(lock: asyncio.Lock, seconds: float, model: str) -> AsyncIterator[None]:
    """Hold it inside the block. Raises RequestError (409, `model_busy`) when others kept it for so long."""
    try:
        await asyncio.wait_for(lock.acquire(), seconds)
    except TimeoutError as error:
        raise RequestError(
            f"model {model} was in use for {seconds:g} s (registered, forked, pulled or trained): try again "
            "when that has ended",
            status=409,
            code="model_busy",
        ) from error
    try:
        yield
    finally:
        lock.release()
