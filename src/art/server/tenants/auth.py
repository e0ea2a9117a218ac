"""Who asks: the server's own key is the operator's, each tenant has one of its own."""

from __future__ import annotations

import hashlib
import hmac

from art.errors import AuthenticationError
from art.server.http import Scope
from art.server.tenants.tenancy import Tenant
from art.server.tenants.tenants import TenantKeys

_BEARER = b"Bearer "


class KeyCheck:
    """Compares the key of a request in constant time. The keys themselves are never shown."""

    def __init__(self, key: str, tenants: TenantKeys | None = None) -> None:
        self._expected = _BEARER + key.encode("ascii")
        self._tenants = tenants

    def __repr__(self) -> str:
        return "KeyCheck(...)"

    def require(self, scope: Scope) -> Tenant:
        """Who asks. Raises: AuthenticationError (401)."""
        sent = _sent(scope)
        if hmac.compare_digest(sent, self._expected):
            return None
        if self._tenants is not None and sent.startswith(_BEARER):
            # Found by its digest: how long that takes tells nothing about the keys.
            tenant = self._tenants.owner(hashlib.sha256(sent[len(_BEARER) :]).digest())
            if tenant is not None:
                return tenant
        raise self.refusal(scope)

    def still(self, scope: Scope, tenant: str) -> bool:
        """Whether the request's key is still the tenant's: a long reply may outlive it."""
        sent = _sent(scope)[len(_BEARER) :]
        return self._tenants is not None and self._tenants.owner(hashlib.sha256(sent).digest()) == tenant

    def refusal(self, scope: Scope) -> AuthenticationError:
        """What a request without a right key is told."""
        what = "the key is wrong" if _sent(scope) else "no key was sent"
        return AuthenticationError(
            f"{what}: send the server's key as 'Authorization: Bearer <key>' or 'x-api-key: <key>'",
            status=401,
            code="invalid_api_key",
        )


def _sent(scope: Scope) -> bytes:
    """The bearer header; Anthropic's clients name it `x-api-key`."""
    other = b""
    for name, value in scope["headers"]:
        if name == b"authorization":
            return bytes(value)
        if name == b"x-api-key":
            other = _BEARER + bytes(value)
    return other
