"""The one kind of error with which a request is refused, and what a future that failed says."""

from __future__ import annotations

import json

from art.errors import (
    ARTError,
    ConfigurationError,
    NotFoundError,
    RequestError,
    ServerError,
    TokenMismatchError,
)

INVALID = "invalid_request"
UNSUPPORTED_LOSS = "unsupported_loss"
UNSUPPORTED_INPUT = "unsupported_input"
TOO_LARGE = "request_too_large"


def refusal(message: str, *, param: str | None = None, code: str = INVALID) -> RequestError:
    """Returns the error of status 400. `param` is the path of the field: `data[3].loss_fn_inputs.weights`."""
    return RequestError(message, status=400, code=code, param=param)


_OF_THE_USER = (RequestError, ConfigurationError, TokenMismatchError, NotFoundError)


def failure_of(error: Exception) -> bytes:
    """Returns the result of a request that failed, and whose fault that is."""
    ours = not isinstance(error, _OF_THE_USER) or (isinstance(error, ServerError) and error.status >= 500)
    text = str(error) if isinstance(error, ARTError) else f"internal error: {error!r}"
    return json.dumps({"error": text, "category": "server" if ours else "user"}).encode()
