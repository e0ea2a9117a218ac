"""What an inference engine is: token ids in, token ids and logprobs out, adapters by immutable name.

Everything that serves tokens implements `Engine`: the builtin engine, itself and behind its worker process
(`art.engine.remote`), vLLM behind its own HTTP (`art_extensions.vllm`), and a set of replicas
(`art.engine.replicas`). What a worker process of ours serves implements `ServedEngine`, too, which takes a
sink in place of an iterator.
`tests/contracts/test_engine.py` holds the tests that each of them must pass.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from art.errors import ARTError
from art.process.worker import Supervised
from art.wire.sampling import Constraint as Constraint
from art.wire.sampling import Sampling as Sampling

if TYPE_CHECKING:
    from art.wire.engine import Alternatives, EngineHealth
    from art.wire.records import Strict


FinishReason = Literal["stop", "length"]
Rows = Sequence[Sequence[int]]
TopLogprobs = Sequence[tuple[int, float]]
"""The most probable ids with their logprobs, best first: fewer than asked for where no more are possible."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImagePrompt:
    """A prompt with images, as an engine wants it that puts their tokens in place itself."""

    ids: Sequence[int]
    """One placeholder for each image and for what the model's format puts around it."""
    placeholder: int
    files: Sequence[bytes]
    """PNG, of the size that the model's tower sees, in the order of the placeholders."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateRequest:
    """One completion to sample."""

    request_id: str
    adapter: str | None
    """Name under which an adapter was loaded, or None for the base model."""
    prompt_ids: Sequence[int]
    """Negative ones stand for images (`art.wire.samples`)."""
    sampling: Sampling
    images: ImagePrompt | None = None
    """None: the prompt has none."""
    stream: bool = False
    """False: one delta at the end. True: a delta as soon as there are new ids."""
    affinity: str | None = None
    """Requests of one affinity (a rollout) share prefixes: they belong on one replica."""
    owner: str = ""
    """Whose request it is (a model of a project): waiting owners take turns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Delta:
    """New ids of one completion, in order. The last delta, and only that one, has a `finish_reason`.

    >>> first = Delta(token_ids=[17, 4], logprobs=[-0.31, -1.2])
    >>> last = Delta(token_ids=[2], logprobs=[-0.01], finish_reason="stop")      # 2 is a stop token id
    """

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    """One per id: natural log of the probability with which it was drawn."""
    finish_reason: FinishReason | None = None
    stop_string: str | None = None
    """The stop string that ended the completion. Its ids stay in `token_ids`: they were sampled."""
    top_logprobs: Sequence[TopLogprobs] = ()
    """One per id where they were asked for, of the same distribution as `logprobs`."""
    candidates: bytes = b""
    """The ids among which each was drawn if top_k, top_p or min_p truncate: a record of `art.wire.samples`.
    Empty from an engine that does not record them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranked:
    """The model's ranking of a row's ids except the first, at temperature 1.

    >>> ranked = Ranked(logprobs=[-0.31], tops=[[(9, -0.11), (17, -0.31)]])       # of the row [4, 17]
    """

    logprobs: Sequence[float]
    """The logprob of each id, given the ids before it."""
    tops: Sequence[TopLogprobs]
    """The most probable ids in the place of each; empty where none were asked for."""
    named: Sequence[float] = ()
    """The logprobs of the ids that `Alternatives` names."""
    drawn: Sequence[TopLogprobs] = ()
    """The ids that it has drawn in each place, in the order of their draws."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineInfo:
    """The description of an engine."""

    base_model: str
    max_context: int
    """Prompt plus completion, in tokens."""
    vocab_size: int
    device: str
    dtype: str
    adapters: tuple[str, ...] = ()
    running: int = 0
    waiting: int = 0
    max_waiting: int = 0

    @classmethod
    def from_health(cls, health: EngineHealth) -> EngineInfo:
        """Reads the engine's description from a worker's health."""
        return cls(
            base_model=health.base_model,
            max_context=health.max_context,
            vocab_size=health.vocab_size,
            device=health.device,
            dtype=health.dtype,
            adapters=tuple(health.adapters),
            running=health.running,
            waiting=health.waiting,
            max_waiting=health.max_waiting,
        )


class Engine(Protocol):
    """The interface of all engines. Every method raises a subclass of `art.errors.ARTError` when it fails.

    Waiting is bounded: `generate` raises `OverloadedError` at once when the queue is full.
    """

    async def info(self) -> EngineInfo: ...

    def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        """Sample one completion. Closing the iterator cancels the request and frees its place.

        Raises: OverloadedError, NotFoundError (unknown adapter), RequestError (prompt too long, id out of
        range), WorkerError.
        """
        ...

    async def load_adapter(self, name: str, path: Path) -> None:
        """Load a PEFT LoRA folder, or a model whose weights were all trained, under a name that is never
        used again for other weights.

        Raises: ConfigurationError when the name is taken by another path, CheckpointError when the folder is
        unfit.
        """
        ...

    async def unload_adapter(self, name: str) -> None:
        """Unloads an adapter; requests that use it are finished first. Unknown names raise NotFoundError."""
        ...

    async def score(self, adapter: str | None, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """Logprob of each id given those before it, at temperature 1: `len(row) - 1` numbers a row."""
        ...

    async def rank(
        self, adapter: str | None, rows: Rows, most: int, alternatives: Alternatives | None = None
    ) -> list[Ranked]:
        """Scores rows as `score` does, with the `most` probable ids (0 to 20) in each place. A row leaves
        room for one id. `alternatives`: of one row; RequestError from an engine that cannot tell them.
        """
        ...

    async def sleep(self) -> None:
        """Frees memory (caches) for the trainer; running requests are finished first, new ones wait."""
        ...

    async def wake(self) -> None: ...

    async def close(self) -> None:
        """Stop. Calling it twice is allowed."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Deadlines:
    """Seconds after which a silent worker or server is taken for stuck."""

    connect: float = 10.0
    health: float = 10.0
    control: float = 120.0
    """Loading, scoring, waking."""
    drain: float = 1800.0
    """Unloading and sleeping, which wait for running requests."""
    stall: float = 60.0
    """Requests are running, but the step counter stands still."""


@dataclass(frozen=True, kw_only=True)
class ServerOrder:
    """The order to start another project's engine server: one replica of a base model."""

    name: str
    """The name that messages use, such as `engine-qwen-0`."""
    base_model: str
    """A local folder or a hub name."""
    options: Strict
    """The checked options of this kind of engine (`art.engine.registry`)."""
    log_path: Path
    """Where what it writes is kept."""
    replica: int = 0
    """Its number among the engines of this base model, from 0."""
    copies: int = 1
    """Such servers on this machine, which divide its cores."""
    device: str | None = None
    """Where this replica computes, such as `cuda:1`; None: as the options say."""
    start_deadline: float = 300.0
    """Seconds until it must answer."""
    deadlines: Deadlines = Deadlines()


class EngineServer(Supervised, Protocol):
    """A server of somebody else's engine, as a supervisor sees it, and the engine that speaks to it."""

    @property
    def engine(self) -> Engine: ...


Sink = Callable[[Delta | ARTError], None]
"""Takes each delta of a request, or the error that ended it, on the event loop that began the request."""
C = TypeVar("C")


class ServedEngine(Protocol[C]):
    """`art.engine.protocol.Engine` with begun requests in place of iterators; C is what identifies one."""

    def health(self) -> EngineHealth: ...

    def begin(self, request: GenerateRequest, sink: Sink) -> C:
        """Queues a request. Raises: OverloadedError, WorkerError."""
        ...

    def cancel(self, call: C) -> None:
        """Free the request's place; after its end this does nothing."""
        ...

    async def load_adapter(self, name: str, path: Path) -> None: ...

    async def unload_adapter(self, name: str) -> None: ...

    async def score(self, adapter: str | None, rows: Sequence[Sequence[int]]) -> list[list[float]]: ...

    async def rank(
        self, adapter: str | None, rows: Rows, most: int, alternatives: Alternatives | None = None
    ) -> list[Ranked]: ...

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...

    async def close(self) -> None: ...
