"""Records on their way in get the names of the inside, records on their way out those of who asked.

By the names of their fields, so that a new request or reply is translated without being listed here.
"""

from __future__ import annotations

from typing import Any, TypeVar

from art.errors import RequestError
from art.server.data_layout import check_name
from art.server.models.base_models import resolve_base
from art.server.tenants.tenancy import SEPARATOR, Tenant, inside, outside, tenant_of, told
from art.wire.models import ModelInfo, RegisterRequest
from art.wire.strict import Strict

R = TypeVar("R", bound=Strict)

_NAMES = frozenset({"project", "job_id", "model", "inference_name"})
_TEXTS = frozenset({"error"})
_PATHS = frozenset({"checkpoint_dir", "checkpoint_path"})
"""Folders of the operator's machine: nothing that a tenant could open."""


def arrived(tenant: Tenant, record: R) -> R:
    """The request as the inside understands it. Raises RequestError (400) for a name that cannot be one."""
    changes: dict[str, Any] = {}
    job_id, from_project = (getattr(record, field, None) for field in ("job_id", "from_project"))
    if job_id is not None:
        changes["job_id"] = inside(tenant, check_job_id(job_id))
    if from_project is not None:
        changes["from_project"] = inside(tenant, from_project)
    if isinstance(record, RegisterRequest):
        check_name("name", record.name)
        changes["project"] = inside(tenant, check_name("project", record.project))
        if tenant is not None:
            _check_base(record.base_model)
    return record.model_copy(update=changes) if changes else record


def leaving(tenant: Tenant, record: R) -> R:
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
            changes[field] = leaving(tenant, value)
        elif field in _NAMES and isinstance(value, str):
            changes[field] = outside(tenant, value)
        elif field in _TEXTS and isinstance(value, str):
            changes[field] = told(tenant, value)
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
    plain = (
        base_model.count("/") <= 1 and not base_model.startswith((".", "~", "/")) and "\\" not in base_model
    )
    if base_model.startswith("art/") or (plain and resolve_base(base_model).source == base_model):
        return
    raise RequestError(
        f"base_model {base_model!r} is not for tenants: choose a built-in model (art/nano) or a "
        "name of the hub (owner/name); folders are the operator's",
        status=400,
        code="base_model_not_allowed",
        param="base_model",
    )
