"""The names that tenants' projects, jobs and models have inside the server: project `games` of tenant `alice`
is `alice~games`. No name from outside may hold a '~', so nobody can spell a name of somebody else.

The names are translated at the edge alone: requests on their way in, replies and errors on their way out.
The operator (tenant None: the server's own key) speaks and sees the names as they are inside.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from art.wire.records import NAME_PATTERN

Tenant = str | None
"""None: the operator, who holds the server's own key."""

SEPARATOR = "~"
HIDDEN = "(hidden)"

_SCOPE = "art.tenant"
_SCOPED = re.compile(rf"(?<![A-Za-z0-9._~-])({NAME_PATTERN})~({NAME_PATTERN})((?:/{NAME_PATTERN})?(?:@\d+)?)")


def internal_name(tenant: Tenant, name: str) -> str:
    """A project's, job's or base model's name as the server keeps it."""
    return name if tenant is None else f"{tenant}{SEPARATOR}{name}"


def external_name(tenant: Tenant, name: str) -> str:
    """The name as its owner knows it."""
    return name if tenant is None else name.removeprefix(f"{tenant}{SEPARATOR}")


def tenant_of(name: str) -> Tenant:
    """Returns the tenant of an internal name."""
    owner, separator, _ = name.partition(SEPARATOR)
    return owner if separator else None


def redact_for_tenant(tenant: Tenant, text: str) -> str:
    """A message as a tenant may read it: its own names as it knows them, those of others hidden."""
    if tenant is None or SEPARATOR not in text:
        return text

    def translate(found: re.Match[str]) -> str:
        return f"{found[2]}{found[3]}" if found[1] == tenant else HIDDEN

    return _SCOPED.sub(translate, text)


def with_tenant(scope: Mapping[str, Any], tenant: Tenant) -> dict[str, Any]:
    """The request's scope with who asks."""
    return {**scope, _SCOPE: tenant}


def tenant_in(scope: Mapping[str, Any]) -> Tenant:
    """Returns the caller's tenant. Raises KeyError for a request that has not passed the key check."""
    tenant: Tenant = scope[_SCOPE]
    return tenant
