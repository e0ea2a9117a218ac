"""Every exception that ART raises on purpose.

    ARTError
     ├── ConfigurationError (ValueError)      an option is unknown, out of range or does not fit another
     ├── NotBuiltError (NotImplementedError)  the name is known, but nothing is behind it yet
     ├── NotRegisteredError (RuntimeError)    the model has no backend yet
     ├── ServerError                          the server answered with an error
     │    ├── AuthenticationError             no key, or a wrong one
     │    ├── NotFoundError                   no such model, job, sample or rollout
     │    ├── RequestError                    the request was refused: the message says what was wrong
     │    └── OverloadedError                 the queue is full; `retry_after` says when to come back
     ├── ServerUnreachableError               nobody answers at the server's address
     ├── DeadlineError (TimeoutError)         something was waited for longer than its deadline
     ├── WorkerError                          an engine or trainer process failed
     │    ├── WorkerDiedError                 it ended by itself or was killed
     │    └── WorkerStalledError              it lives but stopped answering
     ├── TrainingError                        a training job ended without a new step
     ├── TokenMismatchError                   ids or logprobs of a sample do not fit what was sampled
     ├── UnbalancedSheetError                 rollouts or tokens of a step are unaccounted for
     ├── CanaryError                          a newly loaded adapter and the trainer compute differently
     └── CheckpointError                      a checkpoint is missing, incomplete or of another base model

Messages name the thing, the value and the remedy. A class also inherits the standard error that a caller
would have caught before.
"""

from __future__ import annotations


class ARTError(Exception):
    """Base of every error that ART raises on purpose."""


class ConfigurationError(ARTError, ValueError):
    """An option is unknown, out of range, or does not fit another one."""


class NotBuiltError(ARTError, NotImplementedError):
    """The name is known, but nothing is behind it yet; the message says what to use instead."""


class NotRegisteredError(ARTError, RuntimeError):
    """The model has no backend yet: call `await model.register(backend)` first."""


class ServerError(ARTError):
    """The server answered with an error.

    `status` is the HTTP status, `code` the machine-readable reason of the error body (or None), `param` the
    field of the request that it is about (or None).
    """

    def __init__(
        self, message: str, *, status: int, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


class AuthenticationError(ServerError):
    """No key was sent, or a wrong one."""


class NotFoundError(ServerError):
    """The server knows no such model, job, sample or rollout."""


class RequestError(ServerError):
    """The server refused the request; the message says what was wrong with it."""


class OverloadedError(ServerError):
    """The queue is full. `retry_after` is the number of seconds after which to try again."""

    def __init__(
        self, message: str, *, status: int = 429, code: str | None = None, retry_after: float = 1.0
    ) -> None:
        super().__init__(message, status=status, code=code)
        self.retry_after = retry_after


class ServerUnreachableError(ARTError, ConnectionError):
    """Nobody answers at the server's address."""


class DeadlineError(ARTError, TimeoutError):
    """Something was waited for longer than its deadline."""


class WorkerError(ARTError):
    """An engine or trainer process failed."""


class WorkerDiedError(WorkerError):
    """A worker process ended by itself or was killed."""


class WorkerStalledError(WorkerError):
    """A worker process lives but stopped answering."""


class TrainingError(ARTError):
    """A training job ended without a new step."""


class TokenMismatchError(ARTError, ValueError):
    """Ids or logprobs of a sample do not fit what was sampled."""


class UnbalancedSheetError(ARTError):
    """Rollouts or tokens of a training step are unaccounted for."""


class CanaryError(ARTError):
    """A newly loaded adapter does not compute what the trainer computed."""


class CheckpointError(ARTError):
    """A checkpoint is missing, incomplete, or belongs to another base model."""
