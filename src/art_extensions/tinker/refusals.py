"""The one kind of error with which a request is refused."""

from __future__ import annotations

from art.errors import RequestError

INVALID = "invalid_request"
UNSUPPORTED_LOSS = "unsupported_loss"
UNSUPPORTED_INPUT = "unsupported_input"
TOO_LARGE = "request_too_large"


def refusal(message: str, *, param: str | None = None, code: str = INVALID) -> RequestError:
    """Returns the error of status 400. `param` is the path of the field: `data[3].loss_fn_inputs.weights`."""
    return RequestError(message, status=400, code=code, param=param)
