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
BODY_S = 120.0
"""How long a body may take to arrive."""

A = TypeVar("A", bound=Asked)


async def read_bytes(request: Request) -> bytes:
    """The body. Raises RequestError: 413 for one that is too large, 408 for one that comes too slowly."""
    pieces, size = [], 0
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                size += len(piece)
                if size > LARGEST_BODY:
                    raise RequestError(f"the body is larger than {LARGEST_BODY} bytes", status=413)
                pieces.append(piece)
    except TimeoutError as error:
        raise RequestError(f"the body did not arrive within {BODY_S:g} s", status=408) from error
    return b"".join(pieces)


async def read(request: Request, kind: type[A]) -> A:
    """The body as a record. Raises RequestError (400) that names the field."""
    try:
        return kind.model_validate_json(await read_bytes(request) or b"{}")
    except ValidationError as error:
        raise refusal(f"{first_flaw(error)}", code="invalid_request") from error
