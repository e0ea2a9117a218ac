"""From what a server answers to the exceptions of `art.errors`."""

from __future__ import annotations

import json

import httpx

from art import errors
from art.wire.models import ErrorBody

# Why a training job failed, by the code of its last event.
_BY_CODE: dict[str, type[errors.ARTError]] = {
    "canary": errors.CanaryError,
    "checkpoint": errors.CheckpointError,
    "configuration": errors.ConfigurationError,
    "deadline": errors.DeadlineError,
    "token_mismatch": errors.TokenMismatchError,
    "training": errors.TrainingError,
    "unbalanced_sheet": errors.UnbalancedSheetError,
    "worker": errors.WorkerError,
    "worker_died": errors.WorkerDiedError,
    "worker_stalled": errors.WorkerStalledError,
}


def job_error(message: str, code: str | None) -> errors.ARTError:
    """The error of a failed job. Codes are names like `worker_died`; a class name like `WorkerDiedError` also
    fits.
    """
    snake = (
        "".join(f"_{c.lower()}" if c.isupper() else c for c in code or "").strip("_").removesuffix("_error")
    )
    return _BY_CODE.get(snake, errors.TrainingError)(message)


def response_error(response: httpx.Response, asked: str) -> errors.ARTError:
    """The error of a response with status >= 400. Its body must have been read. `asked` names the request."""
    status, body = response.status_code, _body(response)
    message = f"{asked}: {body.message}"
    if status in (401, 403):
        return errors.AuthenticationError(message, status=status, code=body.code)
    if status == 404:
        return errors.NotFoundError(message, status=status, code=body.code)
    if status in (429, 503):
        pause = retry_after(response) or body.retry_after or 1.0
        return errors.OverloadedError(message, status=status, code=body.code, retry_after=pause)
    if 400 <= status < 500:
        return errors.RequestError(message, status=status, code=body.code)
    return errors.ServerError(message, status=status, code=body.code)


def retry_after(response: httpx.Response) -> float | None:
    """Seconds of the Retry-After header, or None."""
    try:
        return max(0.0, float(response.headers.get("retry-after", "")))
    except ValueError:
        return None


def _body(response: httpx.Response) -> ErrorBody:
    try:
        found = json.loads(response.content)["error"]
        known = {name: found.get(name) for name in ErrorBody.model_fields}
        return ErrorBody(**{**known, "message": str(found["message"]), "type": str(found.get("type"))})
    except (ValueError, KeyError, TypeError, AttributeError):
        return ErrorBody.model_validate(
            {"message": f"status {response.status_code}: {response.text[:500]!r}", "type": "?"}
        )
