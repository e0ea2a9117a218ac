"""What the routes about models have in common: bodies, names, replies and errors, in the names of who asks.

From `model_asked`, `job_asked` and `read_body` on until `record_reply`, names are those of the inside.
Records are translated by the names of their fields, so that a new request or reply needs no entry here.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from art.engine.base_models import is_file_name, resolve_base
from art.errors import RequestError
from art.server.data_folder import check_name
from art.server.http import read_bytes
from art.server.tenancy import (
    SEPARATOR,
    Tenant,
    external_name,
    internal_name,
    redact_for_tenant,
    tenant_in,
    tenant_of,
)
from art.wire.models import LoadBaseRequest, ModelInfo, RegisterRequest
from art.wire.records import HUB, PieceError, Strict, first_flaw, read_pieces, split_bits

R = TypeVar("R", bound=Strict)

_NAMES = frozenset({"project", "job_id", "model", "inference_name"})
_TEXTS = frozenset({"error"})
_PATHS = frozenset({"checkpoint_dir", "checkpoint_path"})
"""Folders of the operator's machine: nothing that a tenant could open."""


def with_internal_names(tenant: Tenant, record: R) -> R:
    """The request as the inside understands it. Raises RequestError (400) for a name that cannot be one."""
    changes: dict[str, Any] = {}
    job_id, from_project = (getattr(record, field, None) for field in ("job_id", "from_project"))
    if job_id is not None:
        changes["job_id"] = internal_name(tenant, check_job_id(job_id))
    if from_project is not None:
        changes["from_project"] = internal_name(tenant, from_project)
    if isinstance(record, LoadBaseRequest) and tenant is not None:
        _check_base(record.base_model)
    if isinstance(record, RegisterRequest):
        check_name("name", record.name)
        changes["project"] = internal_name(tenant, check_name("project", record.project))
        if tenant is not None:
            _check_base(record.base_model)
    return record.model_copy(update=changes) if changes else record


def with_external_names(tenant: Tenant, record: R) -> R:
    """The reply in the words of who asked: own names as they know them, no paths for a tenant."""
    changes: dict[str, Any] = {}
    if tenant is None:
        owner = tenant_of(record.project) if isinstance(record, ModelInfo) else None
        if isinstance(record, ModelInfo) and owner is not None:
            changes["inference_name"] = f"{record.project}/{record.name}"
        return record.model_copy(update=changes) if changes else record
    for field in type(record).model_fields:
        value = getattr(record, field)
        if field in _PATHS:
            changes[field] = None
        elif isinstance(value, Strict):
            changes[field] = with_external_names(tenant, value)
        elif field in _NAMES and isinstance(value, str):
            changes[field] = external_name(tenant, value)
        elif field in _TEXTS and isinstance(value, str):
            changes[field] = redact_for_tenant(tenant, value)
    if isinstance(record, ModelInfo):
        changes["entity"] = tenant
    return record.model_copy(update=changes)


def check_job_id(job_id: str) -> str:
    """The id itself. Raises RequestError (400) for one that could be read as a tenant's."""
    if SEPARATOR in job_id:
        raise RequestError(
            f"job_id {job_id[:100]!r} may not hold a {SEPARATOR!r}",
            status=400,
            code="invalid_job_id",
            param="job_id",
        )
    return job_id


def _check_base(base_model: str) -> None:
    """A tenant trains what the machine was given for everybody, not folders of the machine."""
    base_model, _ = split_bits(base_model)
    plain = (
        base_model.count("/") <= 1
        and not base_model.startswith((".", "~", "/", HUB))
        and "\\" not in base_model
        and not is_file_name(base_model)  # whether the machine has such a file is not told either
    )
    if base_model.startswith("art/") or (plain and resolve_base(base_model).source == base_model):
        return
    raise RequestError(
        f"base_model {base_model!r} is not for tenants: choose a built-in model (art/nano) or a "
        "name of the hub (owner/name); folders and GGUF files are the operator's",
        status=400,
        code="base_model_not_allowed",
        param="base_model",
    )


Body = TypeVar("Body", bound=Strict)

MODEL_ROUTE = "/art/models/{project}/{name}"
LARGEST_BODY = 64 * 1024 * 1024
_LARGE_BODY = 128 * 1024
"""Bytes; reading more at once would hold up every other request."""


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
    return with_internal_names(tenant_in(request.scope), asked)


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
    return internal_name(tenant_in(request.scope), request.path_params["project"]), request.path_params[
        "name"
    ]


def job_asked(request: Request) -> str:
    """The job's id, as it is inside."""
    return internal_name(tenant_in(request.scope), request.path_params["job_id"])


def operator_only(request: Request, why: str = "it is about the server's files") -> None:
    """Raises RequestError (403) for a tenant."""
    if tenant_in(request.scope) is not None:
        raise RequestError(
            f"{request.method} {request.url.path} needs the server's own key: {why}",
            status=403,
            code="operator_only",
        )


def record_reply(request: Request, record: Strict) -> Response:
    """The record, in names of who asked."""
    external = with_external_names(tenant_in(request.scope), record)
    return Response(external.model_dump_json(), media_type="application/json")
