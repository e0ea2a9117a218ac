"""From what a server answers to the exceptions of `art.errors`."""

from __future__ import annotations

import json

import httpx

from art import errors
from art.wire.models import ErrorBody

# Codes of errors that are not about the request, and their classes here.
_BY_CODE: dict[str, type[errors.ARTError]] = {
    "worker_died": errors.WorkerDiedError,
    "worker_stalled": errors.WorkerStalledError,
    "worker_failed": errors.WorkerError,
    "deadline_exceeded": errors.DeadlineError,
    "invalid_configuration": errors.ConfigurationError,
    "no_checkpoints": errors.CheckpointMissingError,
    "disk_error": errors.DiskError,
    "step_missing": errors.StepMissingError,
    "canary_failed": errors.CanaryError,
}


def job_error(message: str, code: str | None) -> errors.ARTError:
    """The error of a failed job. `code` names its class, or (like `step_conflict`) why it was refused."""
    kind = getattr(errors, code or "TrainingError", None)
    if isinstance(kind, type) and issubclass(kind, errors.ARTError):
        if issubclass(kind, errors.ServerError):
            return kind(message, status=400, code=code)
        return kind(message)
    if code in _BY_CODE:
        return _BY_CODE[code](message)
    if code is not None and code.endswith("_not_found"):
        return errors.NotFoundError(message, status=404, code=code)
    return errors.RequestError(message, status=409, code=code)


def response_error(response: httpx.Response, asked: str) -> errors.ARTError:
    """The error of a response with status >= 400. Its body must have been read. `asked` names the request."""
    status, body = response.status_code, _body(response)
    message = f"{asked}: {body.message}"
    if body.code in _BY_CODE:
        return _BY_CODE[body.code](message)
    if status in (401, 403):
        return errors.AuthenticationError(message, status=status, code=body.code)
    if status == 404:
        return errors.NotFoundError(message, status=status, code=body.code)
    pause = retry_after(response)
    if status == 429 or (status == 503 and pause is not None):
        return errors.OverloadedError(message, status=status, code=body.code, retry_after=pause or 1.0)
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
