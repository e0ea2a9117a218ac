"""Who asks: the server's own key is the operator's, each tenant and each scoped rollout has one."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from art.errors import AuthenticationError, ConfigurationError
from art.server.http import Scope
from art.server.rollouts.keys import PREFIX, RolloutKeys
from art.server.settings import SHORTEST_KEY, is_key
from art.server.tenants.tenancy import Tenant
from art.server.tenants.tenants import TenantKeys

_BEARER = b"Bearer "
_SCOPED = _BEARER + PREFIX.encode()
_NOTHING = (b"", _BEARER.strip())
"""A header without a key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asker:
    """Whose key a request carries."""

    tenant: Tenant
    rollout_id: str | None = None
    """The one rollout that the key opens; None: it is nobody's in particular."""


_OPERATOR = Asker(tenant=None)


class KeyCheck:
    """Compares the key of a request in constant time. The keys themselves are never shown."""

    def __init__(self, key: str, tenants: TenantKeys | None = None) -> None:
        """Raises ConfigurationError for a key that would let anybody in."""
        if not is_key(key):
            raise ConfigurationError(
                f"the server's key must be at least {SHORTEST_KEY} printable ASCII characters without "
                f"spaces, this one has {len(key)} characters"
            )
        self._expected = _BEARER + key.encode("ascii")
        self._tenants = tenants
        self.rollouts = RolloutKeys(key, tenants.digest_of if tenants is not None else lambda tenant: None)

    def __repr__(self) -> str:
        return "KeyCheck(...)"

    def require(self, scope: Scope) -> Asker:
        """Who asks. Raises: AuthenticationError (401)."""
        for sent in _sent(scope):
            asker = self._asker(sent)
            if asker is not None:
                return asker
        raise self.refusal(scope)

    def _asker(self, sent: bytes) -> Asker | None:
        if hmac.compare_digest(sent, self._expected):
            return _OPERATOR
        if sent.startswith(_SCOPED):
            opened = self.rollouts.read(sent[len(_BEARER) :].decode("latin-1"))
            return None if opened is None else Asker(tenant=opened[0], rollout_id=opened[1])
        if self._tenants is not None and sent.startswith(_BEARER):
            # Found by its digest: how long that takes tells nothing about the keys.
            tenant = self._tenants.owner(hashlib.sha256(sent[len(_BEARER) :]).digest())
            if tenant is not None:
                return Asker(tenant=tenant)
        return None

    def still(self, scope: Scope, asker: Asker) -> bool:
        """Whether the request's key is still the asker's: a long reply may outlive it."""
        if asker.tenant is None:
            return True
        try:
            return self.require(scope) == asker
        except AuthenticationError:
            return False

    def refusal(self, scope: Scope) -> AuthenticationError:
        """What a request without a right key is told."""
        what = "the key is wrong" if _sent(scope) else "no key was sent"
        return AuthenticationError(
            f"{what}: send the server's key as 'Authorization: Bearer <key>' or 'x-api-key: <key>'",
            status=401,
            code="invalid_api_key",
        )


def _sent(scope: Scope) -> list[bytes]:
    """The keys, as bearer headers. Anthropic's clients name theirs `x-api-key`, and where the environment has
    a token for Anthropic itself they send that as `authorization` beside it.
    """
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name == b"authorization":
            found.setdefault(name, bytes(value))
        elif name == b"x-api-key":
            found.setdefault(name, _BEARER + bytes(value))
    sent = [found[name] for name in (b"authorization", b"x-api-key") if name in found]
    return [one for one in sent if one.strip() not in _NOTHING]
