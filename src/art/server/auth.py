"""One bearer key for every route."""

from __future__ import annotations

import hmac

from art.errors import AuthenticationError
from art.server.http import Scope


class KeyCheck:
    """Compares the key of a request in constant time. The key itself is never shown."""

    def __init__(self, key: str) -> None:
        self._expected = b"Bearer " + key.encode("ascii")

    def __repr__(self) -> str:
        return "KeyCheck(...)"

    def is_right(self, scope: Scope) -> bool:
        """Whether the request carries the key."""
        return hmac.compare_digest(_sent(scope), self._expected)

    def require(self, scope: Scope) -> None:
        """Raises: AuthenticationError (401)."""
        sent = _sent(scope)
        if hmac.compare_digest(sent, self._expected):
            return
        what = "the key is wrong" if sent else "no key was sent"
        raise AuthenticationError(
            f"{what}: send the server's key as 'Authorization: Bearer <key>'",
            status=401,
            code="invalid_api_key",
        )


def _sent(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"authorization":
            return bytes(value)
    return b""
