"""What the routes about models have in common: bodies, names, replies and errors, in the names of who asks.

From `model_asked`, `job_asked` and `read_body` on until `reply`, names are those of the inside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from art.errors import ARTError, CanaryError, CheckpointError, ParityError, RequestError
from art.server.http import error_body, read_bytes, status_of
from art.server.tenants.edge import arrived, leaving
from art.server.tenants.tenancy import inside, tenant_in
from art.wire.flaws import first_flaw
from art.wire.pieces import PieceError, read_pieces
from art.wire.strict import Strict

Body = TypeVar("Body", bound=Strict)
Endpoint = Callable[[Request], Awaitable[Response]]

MODEL = "/art/models/{project}/{name}"
LARGEST_BODY = 64 * 1024 * 1024
_LARGE_BODY = 128 * 1024
"""Bytes; reading more at once would hold up every other request."""


def named(endpoint: Endpoint) -> Endpoint:
    """The endpoint, its errors answered in OpenAI's shape."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ARTError as problem:
            error = problem
            if isinstance(problem, CheckpointError):  # trying again is of no use: the message says what is
                error = RequestError(str(problem), status=409, code="checkpoint_unfit")
            elif isinstance(problem, CanaryError) and not isinstance(problem, ParityError):
                error = RequestError(str(problem), status=409, code="canary_failed")
            status, headers = status_of(error)
            extra = {name.decode(): value.decode() for name, value in headers}
            body = error_body(error, tenant_in(request.scope))
            return JSONResponse(body, status_code=status, headers=extra)

    return answer


async def read_body(
    request: Request, kind: type[Body], *, largest: int = LARGEST_BODY, advice: str = ""
) -> Body:
    """The body as a record, in names of the inside. Raises RequestError that says what is wrong."""
    body = await read_bytes(request.scope, request.receive, limit=largest, advice=advice)
    try:
        if len(body) > _LARGE_BODY:
            asked = await asyncio.to_thread(lambda: read_pieces(kind, body.decode()))
        else:
            asked = kind.model_validate_json(body)
    except ValidationError as error:
        flaw = first_flaw(error)
        raise _refusal(kind, flaw.field, flaw.problem) from error
    except PieceError as error:
        raise _refusal(kind, error.field, str(error)) from error
    except UnicodeDecodeError as error:
        raise _refusal(kind, "", f"Invalid JSON: {error.reason}") from error
    return arrived(tenant_in(request.scope), asked)


def _refusal(kind: type[Strict], field: str, problem: str) -> RequestError:
    known = ", ".join(kind.model_fields)
    return RequestError(
        f"{field or 'the body'}: {problem}; fields of this request: {known}",
        status=400,
        code="invalid_request",
        param=field or None,
    )


def model_asked(request: Request) -> tuple[str, str]:
    """Project, as it is inside, and name."""
    return inside(tenant_in(request.scope), request.path_params["project"]), request.path_params["name"]


def job_asked(request: Request) -> str:
    """The job's id, as it is inside."""
    return inside(tenant_in(request.scope), request.path_params["job_id"])


def operator_only(request: Request, why: str = "it is about the server's files") -> None:
    """Raises RequestError (403) for a tenant."""
    if tenant_in(request.scope) is not None:
        raise RequestError(
            f"{request.method} {request.url.path} needs the server's own key: {why}",
            status=403,
            code="operator_only",
        )


def reply(request: Request, record: Strict) -> Response:
    """The record, in names of who asked."""
    told = leaving(tenant_in(request.scope), record)
    return Response(told.model_dump_json(), media_type="application/json")
