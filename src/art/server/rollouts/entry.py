"""What a rollout's key opens: completions of that rollout, and the names that it may ask for."""

from __future__ import annotations

from typing import Any

from art.errors import RequestError
from art.server.http import Scope
from art.wire.headers import ROLLOUT_HEADER

ADDRESSED = "art.addressed_rollout"
"""In a request's scope: the rollout that its address names."""

_HEADER = ROLLOUT_HEADER.encode()


def scoped_request(scope: Scope, rollout_id: str) -> Scope:
    """The request of a rollout's key, with the rollout's name on it whatever it says itself.

    Raises: RequestError (403) for another route, or for the address of another rollout.
    """
    method, path = scope["method"], scope["path"]
    inference = path.startswith("/v1/") and method == "POST"
    looking = method == "GET" and (path == "/v1/models" or path.startswith("/v1/models/"))
    if not (inference or looking):
        raise RequestError(
            f"{method} {path}: the key of a rollout opens its completions alone (POST /v1/...)",
            status=403,
            code="rollout_key_not_enough",
        )
    addressed = scope.get(ADDRESSED)
    if addressed is not None and addressed != rollout_id:
        raise RequestError(
            f"the address names rollout {addressed!r}, but this is the key of {rollout_id!r}",
            status=403,
            code="rollout_key_mismatch",
        )
    headers: list[Any] = [pair for pair in scope["headers"] if pair[0] != _HEADER]
    return {**scope, "headers": [(_HEADER, rollout_id.encode("latin-1")), *headers]}
