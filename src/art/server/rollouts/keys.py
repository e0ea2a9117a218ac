"""The key of a rollout: made from the server's key, checked without a look into any table.

    art-rollout-{tenant~rollout_id in base64url}.{HMAC-SHA256, hex}

The HMAC of a tenant's rollout covers the digest of the tenant's own key, so it dies when that is revoked.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable

from art.server.tenants.tenancy import SEPARATOR, Tenant

PREFIX = "art-rollout-"

DigestOf = Callable[[str], bytes | None]
"""Tenant -> digest of its key, None for one without a key."""


class RolloutKeys:
    """Makes and checks them."""

    def __init__(self, server_key: str, digest_of: DigestOf) -> None:
        # A key of its own purpose: what is made of it tells nothing about the server's key.
        self._secret = hmac.digest(server_key.encode(), b"art: keys of rollouts", hashlib.sha256)
        self._digest_of = digest_of

    def __repr__(self) -> str:
        return "RolloutKeys(...)"

    def issue(self, tenant: Tenant, rollout_id: str) -> str:
        """The key of a rollout; always the same one."""
        named = base64.urlsafe_b64encode(f"{tenant or ''}{SEPARATOR}{rollout_id}".encode()).rstrip(b"=")
        return f"{PREFIX}{named.decode()}.{self._mac(tenant, named) or ''}"

    def read(self, key: str) -> tuple[Tenant, str] | None:
        """Whose rollout a key opens, and which; None for a wrong key."""
        named, _, mac = key.removeprefix(PREFIX).partition(".")
        try:
            padded = named + "=" * (-len(named) % 4)
            text = base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True).decode()
        except (ValueError, binascii.Error):
            return None
        owner, _, rollout_id = text.partition(SEPARATOR)
        expected = self._mac(owner or None, named.encode("ascii"))
        if expected is None or not hmac.compare_digest(expected.encode(), mac.encode()):
            return None
        return owner or None, rollout_id

    def _mac(self, tenant: Tenant, named: bytes) -> str | None:
        owner = b"" if tenant is None else self._digest_of(tenant)
        if owner is None:
            return None
        return hmac.new(self._secret, owner + b"\0" + named, hashlib.sha256).hexdigest()
