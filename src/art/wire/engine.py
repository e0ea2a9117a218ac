"""The conversation between the server and an engine worker.

A worker is started by module name and told everything on standard input, so that no key is on a command line:

    stdin   one line, WorkerStart; then nothing: its end means that the parent is gone, and the worker stops
    stdout  one line, WorkerReady, when it serves

Its routes (all under the bearer key, loopback only):

    GET  /health           -> EngineHealth
    POST /load_adapter     LoadAdapter -> {}
    POST /unload_adapter   UnloadAdapter -> {}         answers when the adapter's last request has ended
    POST /score            EngineScoreRequest -> EngineScoreReply
    POST /sleep  /wake     {} -> {}
    WS   /generate         many completions over one connection; a frame holds a list of messages

Frames up are lists of `GenerateMessage` and `CancelMessage`, frames down lists of `DeltaMessage` and
`FailureMessage`; all that happens within one step of the engine shares a frame. A route that fails answers an
`EngineErrorBody` with its status.

Worked example, one request and its answer:

    up    [{"id": "7", "adapter": "tictactoe@3", "prompt_ids": [5, 6], "sampling": {"max_tokens": 2}}]
    down  [{"id": "7", "token_ids": [9, 2], "logprobs": [-0.1, -0.7], "finish_reason": "length"}]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError

from art import errors
from art.errors import ARTError, ConfigurationError, OverloadedError, ServerError, WorkerError
from art.wire.records import Bits, GrownRecord, MaybeNaN, Strict, first_flaw
from art.wire.sampling import Sampling

DType = Literal["auto", "float32", "bfloat16"]
Options = TypeVar("Options", bound=Strict)


TRANSFERS = ("shelf",)
"""The ways of an adapter's weights to an engine. `shelf`: as a folder on the disk of the engine's machine."""


def check_transfer(name: str) -> str:
    """Returns the name of a way that exists. Raises ConfigurationError that lists the known ones."""
    if name not in TRANSFERS:
        raise ConfigurationError(f"unknown transfer {name!r}; known: {', '.join(TRANSFERS)}")
    return name


Transfer = Annotated[str, AfterValidator(check_transfer)]


def checked_options(engine: str, kind: type[Options], options: Mapping[str, Any]) -> Options:
    """Options of an engine, checked. Raises: ConfigurationError that lists the known ones."""
    try:
        return kind.model_validate(dict(options))
    except ValidationError as error:
        known = ", ".join(kind.model_fields)
        raise ConfigurationError(
            f"engine {engine!r}, option {first_flaw(error)}; options of this engine: {known}"
        ) from error


class BuiltinOptions(Strict):
    """The options of the builtin engine."""

    dtype: DType = "auto"
    """auto: float32 on a CPU, bfloat16 on a GPU."""
    device: str = "auto"
    """auto: the first GPU if there is one, else the CPU."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of torch; None: one for a small model, otherwise torch's own choice."""
    max_context: int | None = Field(default=None, ge=2)
    """Prompt plus completion, in tokens; None is what the model was made for."""
    max_running: int = Field(default=256, ge=1)
    """Requests sampled at the same time."""
    max_waiting: int = Field(default=4096, ge=0)
    """Requests that wait for a place; more are refused with 429."""
    max_step_tokens: int | None = Field(default=None, ge=16)
    """Tokens forwarded in one step; longer prompts are forwarded in pieces. None: 1024 on a CPU, where larger
    activations cost more a token (they leave the caches), 8192 on a GPU."""
    cache_rows: int = Field(default=512, ge=1)
    """Conversations whose keys and values are kept, running ones included."""
    cache_mb: int | None = Field(default=None, ge=1)
    """Memory of keys and values in MiB; None: 512 on a CPU, half of what is free on a GPU."""
    reuse_prefixes: bool = True
    """False: each request is computed from its first token, and a lone one to the same bits whatever came
    before it. Slower; for runs that must repeat exactly."""
    merge_mb: int = Field(default=64, ge=0)
    """A small model of the Llama and Qwen family keeps adapters merged whose float32 weights fit in this many
    MiB, which is faster; 0 never merges. A large model keeps them apart, which costs it little."""


class WorkerStart(Strict):
    """The one line that a worker reads when it starts."""

    base_model: str
    """A local folder or a hub name."""
    key: str = Field(min_length=16, repr=False)
    """Every later request must carry it as a bearer token."""
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    """0: the worker chooses one and says which."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The options of this kind of engine (`art.engine.registry`); the worker checks them."""
    bits: Bits = 16
    """4 or 8: the base model's linear layers are quantized."""
    device: str | None = None
    """Where this replica computes, such as `cuda:1`; None: as the options say."""


class WorkerReady(Strict):
    """The one line that a worker writes: it serves, or it could not start."""

    ready: bool
    port: int = 0
    error: str = ""


class EngineHealth(Strict):
    base_model: str
    max_context: int
    vocab_size: int
    device: str
    dtype: str
    adapters: list[str] = Field(default_factory=list)
    running: int = 0
    waiting: int = 0
    max_waiting: int = 0
    asleep: bool = False
    steps: int = 0
    """Steps so far: while requests are running it must grow, or the engine is stuck."""
    prompt_tokens: int = 0
    """Prompt tokens asked for so far; `reused_tokens` of them needed no forward pass."""
    reused_tokens: int = 0
    sampled_tokens: int = 0
    own_pass: bool = False
    """The engine computes the model by itself; if not, it runs through its modules, which is slower."""
    preempted: int = 0
    """Requests sent back to the queue because the cache was full."""
    error: str = ""
    """Why the step loop ended; empty while it lives."""


class LoadAdapter(Strict):
    name: str = Field(min_length=1)
    path: str
    transfer: Transfer = "shelf"


class UnloadAdapter(Strict):
    name: str


MOST_ALTERNATIVES = 65_536
"""The ids of a prompt that may be named in one request, and the ids that may be drawn."""


class Alternatives(Strict):
    """Other ids in the places of a row: place p is that of `row[p]`, from 1 on."""

    ids: list[tuple[int, int]] = Field(default_factory=list, max_length=MOST_ALTERNATIVES)
    """Places and ids whose logprobs to tell."""
    draws: int = Field(default=0, ge=0, le=MOST_ALTERNATIVES)
    """How many ids to draw in each place, each independently of the others."""
    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """That of the draws. The logprobs are those at temperature 1."""
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)


class EngineScoreRequest(GrownRecord):
    LATER: ClassVar[frozenset[str]] = frozenset({"alternatives"})

    adapter: str | None = None
    rows: list[list[int]]
    """Each row at least two ids."""
    most: int | None = Field(default=None, ge=0)
    """The number of most probable ids to return in each place; None: none, and a row may fill the context."""
    alternatives: Alternatives | None = None
    """What else to tell of the only row."""


class EngineScoreReply(GrownRecord):
    LATER: ClassVar[frozenset[str]] = frozenset({"named", "drawn"})

    logprobs: list[list[MaybeNaN]]
    """`len(row) - 1` numbers a row: the logprob of each id given those before it, temperature 1."""
    tops: list[list[list[tuple[int, float]]]] = Field(default_factory=list)
    """The most probable ids in the place of each of these numbers, best first, where they were asked for."""
    named: list[MaybeNaN] = Field(default_factory=list)
    """The logprobs of `Alternatives.ids`."""
    drawn: list[list[tuple[int, float]]] = Field(default_factory=list)
    """The draws in each place, with their logprobs."""


class GenerateMessage(Strict):
    """`art.engine.protocol.GenerateRequest` as JSON. Its affinity is not told: a worker is one replica."""

    id: str
    adapter: str | None = None
    prompt_ids: list[int]
    sampling: Sampling
    stream: bool = False
    owner: str = ""


class CancelMessage(Strict):
    cancel: str
    """The id of a request whose answer is not wanted any more."""


class DeltaMessage(Strict):
    """`art.engine.protocol.Delta` as JSON."""

    id: str
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: Literal["stop", "length"] | None = None
    stop_string: str | None = None
    top_logprobs: list[list[tuple[int, float]]] = Field(default_factory=list)
    candidates: str = ""
    """Base64 of a record of `art.wire.samples`."""


class EngineErrorBody(Strict):
    """An `art.errors` exception on the wire."""

    kind: str
    """The exception's class name."""
    message: str
    status: int = 500
    code: str | None = None
    retry_after: float | None = None


class FailureMessage(Strict):
    id: str
    error: EngineErrorBody


def to_body(error: ARTError) -> EngineErrorBody:
    """Write an exception down so that `to_error` can raise it again in another process."""
    body = EngineErrorBody(kind=type(error).__name__, message=str(error))
    if isinstance(error, ServerError):
        body.status, body.code = error.status, error.code
    elif isinstance(error, ValueError):
        body.status = 400
    if isinstance(error, OverloadedError):
        body.retry_after = error.retry_after
    return body


def to_error(body: EngineErrorBody) -> ARTError:
    """The exception that `to_body` wrote down; a kind that we do not know is a WorkerError."""
    kind = getattr(errors, body.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, ARTError)):
        return WorkerError(f"{body.kind}: {body.message}")
    if issubclass(kind, OverloadedError):
        return kind(body.message, status=body.status, code=body.code, retry_after=body.retry_after or 1.0)
    if issubclass(kind, ServerError):
        return kind(body.message, status=body.status, code=body.code)
    return kind(body.message)
