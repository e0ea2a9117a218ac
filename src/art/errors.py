"""Every exception that ART raises on purpose.

Each class, with what else it inherits::

    ARTError
     ├── ConfigurationError (ValueError)      an option is unknown, out of range or does not fit another
     │    ├── MissingExtraError (ImportError) a package is needed that no installed extra brought
    │    └── FolderInUseError                another server uses the data folder
     ├── NotBuiltError (NotImplementedError)  the name is known, but nothing is behind it yet
     ├── NotRegisteredError (ValueError)      the model has no backend yet
     ├── BackendClosedError (RuntimeError)    the backend was closed; make a new one
     ├── NoTrajectoryError (RuntimeError)     no trajectory is captured here, or none was yielded
     ├── ServerError                          the server answered with an error
     │    ├── AuthenticationError             no key, or a wrong one
     │    ├── NotFoundError                   no such model, job, sample or rollout
     │    ├── RequestError                    the request was refused: the message says what was wrong
     │    └── OverloadedError                 the queue is full; `retry_after` says when to come back
     ├── ServerUnreachableError               nobody answers at the server's address
     ├── DeadlineError (TimeoutError)         something was waited for longer than its deadline
     ├── WorkerError (RuntimeError)           an engine or trainer process failed
     │    ├── WorkerDiedError                 it ended by itself or was killed
     │    │    └── WorkerUnreachableError     no connection could be made: it never got the request
     │    └── WorkerStalledError              it lives but stopped answering
     ├── TrainingError                        a training job ended without a new step
     │    └── RolloutsFailedError             no rollout of the step gave a trajectory
     ├── TokenMismatchError                   ids or logprobs of a sample do not fit what was sampled
     ├── UnbalancedSheetError                 rollouts or tokens of a step are unaccounted for
     ├── CanaryError                          a newly loaded adapter and the trainer compute differently
     │    └── ParityError                     engine and trainer do so with no trained weights at all
     ├── TrajectoryLogError                   a file of trajectories is missing, damaged or of another kind
     ├── CheckpointError                      a checkpoint is missing, incomplete or of another base model
     │    └── CheckpointMissingError (FileNotFoundError)
     │    │                                   the model has no checkpoint at all
     │         └── StepMissingError (ValueError)
     │                                        it has checkpoints, but none of the steps asked for
     ├── DiskError (OSError)                  the disk is full, or a folder cannot be written
     ├── LlmError                             a judge or generator gave no usable answer
     │    ├── LlmUnavailableError             no answer in time, or a fault of its own
     │    │    ├── LlmBusyError               it asks for fewer requests; `retry_after`
     │    │    └── LlmTimeoutError            no answer before the deadline
     │    ├── LlmTooLongError                 the question does not fit; a shorter one may
     │    ├── LlmRefusedError                 it declined
     │    ├── LlmAnswerError (ValueError)     not in the form asked for, also when asked again
     │    └── BudgetExceededError             the next question would go beyond the budget
     ├── VerifierError                        a verifier could not decide
     ├── EnvironmentFailedError               the code of an environment failed in a rollout
     │    └── EnvironmentTimeoutError (DeadlineError)
     │                                        it did not answer in time
     ├── McpError                             an MCP server is not there or breaks the protocol
     │    ├── McpTimeoutError (DeadlineError) it did not answer in time
     │    └── CassetteError                   a recording of one lacks what is asked, or is damaged
     ├── StorageError                         files could not be copied to or from a bucket or folder
     │    └── ForbiddenBucketCreationError    a bucket is missing and may not be made (403)
     └── DeploymentError                      a model could not be given to a provider
          ├── UnsupportedLoRADeploymentProviderError
          │                                   no such provider (400)
          ├── UnsupportedBaseModelDeploymentError
          │                                   the provider does not serve this base model (400)
          └── LoRADeploymentTimedOutError (TimeoutError)
                                              the provider was not done in time (504)

Messages name the thing, the value and the remedy. A class also inherits the standard error that a caller
would have caught before. Every one has `detail` (its message) and `status_code` (an HTTP status).

`did_you_mean` is the guess at a misspelt name that many messages end with.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.util import find_spec
from shlex import quote
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote, urlsplit

_OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "learning_rate": "lr learning_rates step_size",
        "r": "rank lora_rank lora_r max_lora_rank",
        "lora_alpha": "alpha",
        "lora_dropout": "dropout",
        "target_modules": "targets modules",
        "lora_config": "lora lora_args peft_args peft_config",
        "rank": "lora_rank lora_r max_lora_rank r",
        "alpha": "lora_alpha",
        "dropout": "lora_dropout",
        "trainer_args": "optimizer optimizer_args training_args",
        "random_state": "seed",
        "kl_penalty_coef": "beta kl kl_beta kl_coef kl_coefficient",
        "loss_fn": "loss loss_type",
        "epsilon": "clip_eps clip_epsilon clip_range cliprange clip_ratio",
        "epsilon_high": "clip_range_high clip_ratio_high",
        "max_grad_norm": "grad_clip gradient_clipping max_norm",
        "grad_accumulation_sequences": "gradient_accumulation_steps",
        "max_seq_length": "max_length max_len context_length max_context",
        "max_model_len": "max_length max_len context_length max_context",
        "betas": "beta1 beta2",
        "eps": "adam_epsilon",
        "lr_scheduler_type": "scheduler lr_schedule lr_scheduler",
        "expected_step": "step",
        "epochs": "num_epochs num_train_epochs",
        "batch_size": "per_device_train_batch_size",
        "max_tokens": "max_new_tokens max_output_tokens n_predict num_predict",
        "reasoning_effort": "enable_thinking reasoning think thinking thinking_budget",
        "seed": "random_seed sampling_seed",
        "stop": "stop_sequences stop_words",
        "structured_outputs": "ebnf format grammar json_schema regex",
        "temperature": "temp",
    }
)
"""Names here -> what other libraries and papers call the same."""


def did_you_mean(name: str, known: Iterable[str], *, likeness: float = 0.6) -> str:
    """Returns a suggestion of the known name that means the same elsewhere or is closest, or "" if none is
    similar enough (0 to 1).

    >>> did_you_mean("lerning_rate", ["learning_rate", "beta"])
    "did you mean 'learning_rate'?"
    """
    names = list(known)
    close = [ours for ours in names if name.lower() in _OTHER_NAMES.get(ours, "").split()]
    close += get_close_matches(name, names, n=1, cutoff=likeness)
    return f"did you mean {close[0]!r}?" if close else ""


def cut_message(message: str, most: int = 16_000) -> str:
    """Returns its beginning and its end: a message shows the values it is about, and these can be large."""
    return message if len(message) <= most else f"{message[: most // 2]} ... {message[-most // 4 :]}"


class ARTError(Exception):
    """Base of every error that ART raises on purpose: `ARTError(message)`, `ARTError(message, 400)`."""

    status_code: int = 500
    """The HTTP status that fits it."""

    def __init__(self, message: object = "", status_code: int | None = None) -> None:
        super().__init__(cut_message(message) if isinstance(message, str) else message)
        self.detail = str(self)
        if status_code is not None:
            self.status_code = status_code


class ConfigurationError(ARTError, ValueError):
    """An option is unknown, out of range, or does not fit another one."""


class MissingExtraError(ConfigurationError, ImportError):
    """A package is needed that is not installed; the message names the extra to install."""


_SERVER = ("uvicorn", "starlette", "orjson", "numpy", "safetensors", "transformers", "renderers", "psutil")
_LOCAL = (*_SERVER, "torch", "peft")
EXTRAS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "server": _SERVER,
        "local": _LOCAL,
        "logs": ("polars",),
        "images": ("PIL",),
        "plotting": ("matplotlib",),
        "s3": ("fsspec", "s3fs"),
        "hub": ("huggingface_hub",),
        "cluster": (*_SERVER, "ray"),
        "postgres": (*_SERVER, "asyncpg", "cryptography"),
        "litellm": ("litellm",),
        "autorl": ("rapidfuzz",),
        "mcp": ("mcp",),
        "langgraph": ("langgraph", "langchain_openai", "langchain_core"),
        "verifiers": ("jsonschema", "math_verify"),
        "reasoning-gym": ("reasoning_gym",),
        "textarena": ("textarena",),
        "gymnasium": ("gymnasium",),
        "skyrl-gym": ("skyrl_gym",),
        "verifiers-hub": ("verifiers",),
        "verifiers-tasksets": ("verifiers",),
        "openenv": ("openenv",),
        "inspect": ("inspect_ai",),
        "bfcl": ("bfcl_eval", "soundfile"),
        "inspect-evals": ("inspect_ai", "inspect_evals", "toml"),
        "quantized": (*_LOCAL, "bitsandbytes"),
        "tinker": ("google", "google.protobuf", "zstandard"),
        "smollm2": (*_LOCAL, "gguf"),
        "vllm": (*_LOCAL, "aiohttp"),
        "wandb": ("wandb",),
        "trackio": ("trackio",),
        "mlflow": ("mlflow",),
        "ui": ("uvicorn", "starlette", "jinja2"),
        "tensorboard": ("tensorboard",),
        "otel": ("opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter"),
    }
)
"""Extra -> the modules that tell whether it is installed."""
DISTRIBUTION = "agent-reinforcement-trainer"


def install_command(extra: str) -> str:
    """Returns the shell command that adds an extra, from where this package was installed:
    `pip install 'agent-reinforcement-trainer[local]'` where that was an index.
    """
    named = f"{DISTRIBUTION}[{extra}]"
    origin = _origin()
    if origin is None:
        return f"pip install {quote(named)}"
    url: str = origin["url"]
    if origin.get("dir_info", {}).get("editable"):
        return f"pip install --editable {quote(f'{unquote(urlsplit(url).path)}[{extra}]')}"
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    return f"pip install {quote(f'{named} @ {url}')}"


def _origin() -> dict[str, Any] | None:
    """Returns where a clone, file or address was installed from (PEP 610); None: from a package index."""
    from importlib.metadata import PackageNotFoundError, distribution  # needed by errors alone, and slow

    try:
        written = distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    origin: dict[str, Any] | None = json.loads(written) if written else None
    return origin


def is_installed(module: str) -> bool:
    """Returns whether a module can be imported. It is not loaded."""
    try:
        return find_spec(module) is not None
    except ValueError:  # a program's stand-in in `sys.modules`, which has no spec
        return True


def require_extra(extra: str, subject: str, *, remedy: str = "") -> None:
    """Raises MissingExtraError, which names the subject, when a module of the extra is not installed.

    remedy: what else helps, as ", or ...". No module is loaded.
    """
    for module in EXTRAS[extra]:
        if not is_installed(module):
            raise _missing_extra(extra, subject, module, remedy)


@contextmanager
def extra_needed(extra: str, subject: str, *, remedy: str = "") -> Iterator[None]:
    """Turns a failed import in its block into a MissingExtraError that names the subject and the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "art":
            raise  # a fault of this package, which no installation mends
        raise _missing_extra(extra, subject, error.name or str(error), remedy) from error


def _missing_extra(extra: str, subject: str, module: str, remedy: str) -> MissingExtraError:
    return MissingExtraError(
        f"{subject} needs {module.partition('.')[0]!r}, which is not installed. "
        f"Run: {install_command(extra)}{remedy}"
    )


class FolderInUseError(ConfigurationError):
    """Another server uses the data folder."""


class NotBuiltError(ARTError, NotImplementedError):
    """The name exists, but its feature is not implemented; the message names the alternative."""


class NotRegisteredError(ARTError, ValueError):
    """The model has no backend yet: call `await model.register(backend)` first."""


class BackendClosedError(ARTError, RuntimeError):
    """The backend was closed, and its server with it: make a new backend."""


class NoTrajectoryError(ARTError, RuntimeError):
    """No trajectory is captured here, or none was yielded."""


class ServerError(ARTError):
    """The server answered with an error.

    `status` is the HTTP status, `code` the machine-readable reason of the error body (or None), `param` the
    field of the request that it is about (or None).
    """

    def __init__(
        self, message: str, *, status: int, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message, status)
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
    """No server answers at the address."""


class DeadlineError(ARTError, TimeoutError):
    """An operation exceeded its deadline."""


class LocalServingUnavailableError(ARTError, RuntimeError):
    """An engine of this machine does not serve: `WorkerError`, by its name in other releases."""


class WorkerError(LocalServingUnavailableError):
    """An engine or trainer process failed."""


class WorkerDiedError(WorkerError):
    """A worker process ended by itself or was killed."""


class NodeLostError(WorkerDiedError):
    """A worker was lost with its machine: no fault of its own, and the next one runs elsewhere."""


class WorkerUnreachableError(WorkerDiedError):
    """No connection to a worker could be made, so it never got the request."""


class WorkerStalledError(WorkerError):
    """A worker process is alive but stopped answering."""


class TrainingError(ARTError):
    """A training job ended without a new step."""


class RolloutsFailedError(TrainingError):
    """All rollouts of the step failed, so there is no trajectory."""


class GradientsLostError(TrainingError):
    """A batch or a step counts on gradients that the trainer does not hold, or on another step."""


class TokenMismatchError(ARTError, ValueError):
    """Ids or logprobs of a sample do not fit what was sampled."""


class UnbalancedSheetError(ARTError):
    """Rollouts or tokens of a training step are unaccounted for."""


class CanaryError(ARTError):
    """A newly loaded adapter does not compute what the trainer computed."""


class ParityError(CanaryError):
    """Engine and trainer compute different logprobs before anything was trained: the message names the likely
    cause.
    """


class CheckpointError(ARTError):
    """A checkpoint is missing, incomplete, or belongs to another base model."""


class CheckpointMissingError(CheckpointError, FileNotFoundError):
    """The model has no checkpoint at all."""

    status_code = 404


class StepMissingError(CheckpointMissingError, ValueError):
    """The model has checkpoints, but none of the requested steps."""

    status_code = 404


class DiskError(ARTError, OSError):
    """The disk is full, or a folder cannot be written: the message names it. What was stored is kept."""

    status_code = 507


class UnreadableFileError(ARTError, ValueError):
    """A file that somebody else wrote is damaged, nests too deep, is far too large, or is no plain file."""


class StorageError(ARTError):
    """Files could not be copied to or from a bucket or folder."""


class ForbiddenBucketCreationError(StorageError):
    """A bucket is missing, and these credentials may not create it."""

    status_code = 403


class DeploymentError(ARTError):
    """A model could not be deployed at a provider."""


class UnsupportedLoRADeploymentProviderError(DeploymentError, ValueError):
    """The provider is unknown."""

    status_code = 400


class UnsupportedBaseModelDeploymentError(DeploymentError, ValueError):
    """The provider does not serve adapters of this base model."""

    status_code = 400


class LoRADeploymentTimedOutError(DeploymentError, TimeoutError):
    """The deployment did not finish in time; it may still finish."""

    status_code = 504


class TrajectoryLogError(ARTError):
    """A file of trajectories is missing, damaged, or of another kind."""


class LlmError(ARTError):
    """A model that judges or generates gave no usable answer."""


class LlmUnavailableError(LlmError):
    """The model did not answer in time, or answered with an error of its own."""


class LlmBusyError(LlmUnavailableError):
    """The model's endpoint is overloaded; `retry_after` is in seconds, None if the endpoint gave no time."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class LlmTimeoutError(LlmUnavailableError):
    """The model did not answer before the deadline."""


class LlmTooLongError(LlmError):
    """The request does not fit into the model's context; a shorter one may."""


class LlmRefusedError(LlmError):
    """The model declined to answer."""


class LlmAnswerError(LlmError, ValueError):
    """The model's answer had the wrong form, also after a repeated request."""


class BudgetExceededError(LlmError):
    """The next request would exceed the budget; it was not sent."""


class McpError(ARTError):
    """An MCP server could not be started or reached, or violates the protocol."""


class McpTimeoutError(McpError, DeadlineError):
    """An MCP server did not answer in time."""


class CassetteError(McpError):
    """A request to an MCP server is not on the cassette, or the file is damaged."""


class EnvironmentFailedError(ARTError):
    """The code of an environment failed in a rollout; the message names both, the cause is its own error."""


class EnvironmentTimeoutError(EnvironmentFailedError, DeadlineError):
    """A call of an environment's code did not end in time."""


class BoxError(ARTError):
    """A box of a cloud did not start, could not be reached, or could not be ended."""


class VerifierError(ARTError):
    """A verifier could not decide: its process failed or exceeded its limits."""
