"""The bodies of requests: of at most so many bytes, in so much time, and as records."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from pydantic import ValidationError
from starlette.requests import Request

from art.errors import RequestError
from art.wire.records import first_flaw
from art_extensions.tinker.records import Asked
from art_extensions.tinker.refusals import refusal

LARGEST_BODY = 32 * 1024 * 1024
LARGEST_JSON = 12 * 1024 * 1024
"""JSON takes longer to read: a batch of older clients is of at most 5 million estimated bytes."""
_ASIDE = 128 * 1024
"""A body of so many bytes and more is read by a thread."""
BODY_S = 120.0
"""How long a body may take to arrive."""

A = TypeVar("A", bound=Asked)


async def read_bytes(request: Request) -> bytes:
    """The body of a batch. Raises RequestError: 413 for one that is too large, 408 for one that comes too
    slowly.
    """
    return await _bytes(request, LARGEST_BODY)


async def _bytes(request: Request, limit: int) -> bytes:
    pieces, size = [], 0
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                size += len(piece)
                if size > limit:
                    raise RequestError(f"the body is larger than {limit} bytes", status=413)
                pieces.append(piece)
    except TimeoutError as error:
        raise RequestError(f"the body did not arrive within {BODY_S:g} s", status=408) from error
    return b"".join(pieces)


async def read(request: Request, kind: type[A]) -> A:
    """The body as a record. Raises RequestError (400) that names the field."""
    body = await _bytes(request, LARGEST_JSON) or b"{}"
    return parse(kind, body) if len(body) < _ASIDE else await asyncio.to_thread(parse, kind, body)


def parse(kind: type[A], body: bytes) -> A:
    """A record of its JSON. Raises RequestError (400) that names the field."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise refusal(f"{first_flaw(error)}", code="invalid_request") from error
