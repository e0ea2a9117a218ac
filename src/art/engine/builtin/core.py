"""The engine without threads: requests in, steps, deltas out; with its adapters and whole models by name.
Everything here runs on one thread.

`step` is the whole algorithm (continuous batching: Yu et al., "Orca", 2022): requests join and leave between
steps, and one forward pass moves all of them on, those that decode by one token, those whose prompt is read
by many.

A name goes when its last request has ended; it and the last `MOST_NAMES` that went stand for the same weights
when they are loaded again. A model whose weights were all trained is a model of its own beside the base. It
shares the base's cache rows (keys and values depend on the weights, and rows know whose they are), and is
forwarded apart from the others.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError

from art.engine.builtin.cache import BUCKET, RowCache, cache_budget
from art.engine.builtin.decoder import Decoder
from art.engine.builtin.grouped_lora import BASE
from art.engine.builtin.model import CausalModel, load_model, rank_rows
from art.engine.builtin.module_pass import ModulePass
from art.engine.builtin.peft_folder import PeftAdapter, read_adapter
from art.engine.builtin.sampler import Drawn, make_bias, make_penalties, request_seed, sample, shape_logits
from art.engine.builtin.scheduler import NOWHERE, Scheduler, Sequence, StopStrings, TokenizerLoader, appended
from art.engine.builtin.step_batch import StepBatch, make_batch
from art.engine.constraints import Grammars, Guide
from art.engine.limits import check_alternatives, check_ranked, check_request, check_rows
from art.engine.protocol import Delta, GenerateRequest, Ranked
from art.errors import ARTError, CheckpointError, ConfigurationError, NotFoundError, RequestError, WorkerError
from art.process.in_use import InUse
from art.wire.engine import Alternatives, BuiltinOptions, EngineHealth
from art.wire.models import ADAPTER_CONFIG_FILE, TRAINERS_FILES

CONFIG = "config.json"
WEIGHTS = "*.safetensors"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A saved model, as transformers writes it."""

    path: Path
    digest: str
    """sha256 of its configuration and its weights."""


def read_folder(path: Path) -> PeftAdapter | ModelFolder:
    """Reads a checkpoint folder. Raises: CheckpointError that names the missing or broken part."""
    if not (path / CONFIG).is_file() or (path / ADAPTER_CONFIG_FILE).exists():
        return read_adapter(path)
    files = [file for file in sorted(path.glob(WEIGHTS)) if file.name not in TRAINERS_FILES]
    if not files:
        raise CheckpointError(f"the model folder {str(path)!r} has no weights ({WEIGHTS})")
    digest = hashlib.sha256()
    for file in (path / CONFIG, *files):
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return ModelFolder(path, digest.hexdigest())


class WholeModels:
    """The loaded ones by number, kept where the base finds them."""

    def __init__(self, base: CausalModel, options: BuiltinOptions) -> None:
        self._base = base
        self._options = options

    @property
    def numbers(self) -> list[int]:
        return list(self._base.whole_models)

    def add(self, number: int, folder: ModelFolder) -> None:
        """Raises: CheckpointError when it is unreadable or of another shape; then nothing was changed."""
        base = self._base
        try:
            model = load_model(str(folder.path), self._options)
        except (ConfigurationError, RuntimeError, SafetensorError) as error:
            raise CheckpointError(f"the model {str(folder.path)!r} cannot be served: {error}") from error
        if (model.shapes, model.vocab_size) != (base.shapes, base.vocab_size):
            raise CheckpointError(
                f"the model {str(folder.path)!r} has {model.vocab_size} ids and {len(model.shapes)} layers "
                f"{model.shapes[:1]}, the base {base.name!r} {base.vocab_size} and {len(base.shapes)} "
                f"{base.shapes[:1]}: it was trained on another model"
            )
        base.whole_models[number] = model

    def remove(self, number: int) -> None:
        self._base.whole_models.pop(number, None)


@dataclass(slots=True)
class LiveAdapter:
    """One loaded adapter."""

    number: int
    leaving: Future[None] | None = None


MOST_NAMES = 1024
"""The names of which the weights are remembered when they are unloaded."""


@dataclass(slots=True)
class AdapterCatalog:
    """Names, their numbers, and which are in use."""

    passes: Decoder | ModulePass
    whole_models: WholeModels
    live: dict[str, LiveAdapter] = field(default_factory=dict)
    in_use: InUse[str] = field(default_factory=InUse)
    """The names of the adapters that requests use, waiting requests included."""
    history: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The names that were loaded last, with folder and digest: a name never stands for other weights."""
    next_number: int = BASE + 1

    def names(self) -> tuple[str, ...]:
        # A copy first: health is asked for while the step thread changes the dictionary.
        return tuple(sorted(name for name, adapter in list(self.live.items()) if adapter.leaving is None))

    def number(self, name: str | None) -> int:
        """Raises: NotFoundError that lists the loaded adapters."""
        if name is None:
            return BASE
        adapter = self.live.get(name)
        if adapter is None or adapter.leaving is not None:
            # How many, not which: others' names do not belong into a reply.
            raise NotFoundError(
                f"no adapter is loaded as {name!r}; {len(self.names())} others are",
                status=404,
                code="model_not_found",
            )
        return adapter.number

    def add(self, name: str, adapter: PeftAdapter | ModelFolder) -> None:
        """Loading the same folder again does nothing. Raises: ConfigurationError for other weights,
        CheckpointError."""
        identity = (str(adapter.path), adapter.digest)
        if self.history.get(name, identity) != identity:
            before = self.history[name][0]
            other = "other weights in it" if before == identity[0] else repr(identity[0])
            raise ConfigurationError(
                f"the adapter name {name!r} stands for {before!r} and cannot be used for {other}; "
                "take a new name"
            )
        if name in self.live:
            if self.live[name].leaving is not None:
                raise ConfigurationError(
                    f"the adapter {name!r} is being unloaded; load it again when that is done"
                )
            return
        if isinstance(adapter, ModelFolder):
            self.whole_models.add(self.next_number, adapter)
        else:
            self.passes.add(self.next_number, adapter)
        self.live[name] = LiveAdapter(self.next_number)
        self.history[name] = identity
        unloaded = (old for old in self.history if old not in self.live)
        if len(self.history) > MOST_NAMES and (oldest := next(unloaded, None)) is not None:
            del self.history[oldest]
        self.next_number += 1

    def leave(self, name: str) -> Future[None]:
        """Refuse new requests from now on; the future is done when the adapter is gone. Raises:
        NotFoundError."""
        self.number(name)
        leaving: Future[None] = Future()
        self.live[name].leaving = leaving
        return leaving

    def abandon(self, error: ARTError) -> None:
        """The engine ends: nobody waits for the leaving adapters any more."""
        for adapter in self.live.values():
            if adapter.leaving is not None:
                adapter.leaving.set_exception(error)

    def drop_unused(self) -> list[int]:
        """Remove the leaving adapters whose last request has ended; their numbers."""
        done = [
            (name, adapter)
            for name, adapter in self.live.items()
            if adapter.leaving and name not in self.in_use
        ]
        for name, adapter in done:
            self.passes.remove(adapter.number)
            self.whole_models.remove(adapter.number)
            del self.live[name]
            if adapter.leaving is not None:
                adapter.leaving.set_result(None)
        return [adapter.number for _, adapter in done]


Event = tuple[Sequence, Delta | ARTError]


class EngineCore:
    """Model, cache, adapters and requests."""

    def __init__(self, model: CausalModel, options: BuiltinOptions) -> None:
        self.model = model
        self.options = options
        budget = cache_budget(options, model.shapes, model.dtype, model.device)
        self.step_tokens = options.max_step_tokens or (1024 if model.device.type == "cpu" else 8192)
        self.max_context = min(model.max_context, budget - BUCKET)
        cache = RowCache(model.shapes, budget=budget, dtype=model.dtype, device=model.device)
        self.scheduler = Scheduler(
            cache,
            max_running=options.max_running,
            max_rows=options.cache_rows,
            reuse=options.reuse_prefixes,
        )
        self.adapters = AdapterCatalog(model.passes, WholeModels(model, options))
        self.tokenizer = TokenizerLoader(model.name)
        self.grammars = Grammars(model.name)
        self.asleep = False
        self.steps = 0
        self.sampled_tokens = 0
        self._sleeping: list[Future[None]] = []

    def step(self) -> list[Event]:
        """Move every request on that can move."""
        self._admit()
        events: list[Event] = []
        for rows in self._rows_per_pass():
            batch = make_batch(self.scheduler.table, self.scheduler.cache, self.step_tokens, rows)
            if batch is not None:
                logits = self._forward(batch)
                events += self._deliver(batch, *self._sample(batch, logits))
        return events

    @property
    def has_work(self) -> bool:
        """Returns whether a step would do anything."""
        return bool(self.scheduler.running) or (bool(self.scheduler.waiting) and not self.asleep)

    def make_sequence(self, request: GenerateRequest, guide: Guide | None = None) -> Sequence:
        """Check a request. `guide` is its constraint's; None: `grammars` opens one, which may take a second.

        Raises: NotFoundError (adapter), RequestError.
        """
        adapter = self.adapters.number(request.adapter)
        check_request(request, max_context=self.max_context, vocab_size=self.model.vocab_size)
        constraint = request.sampling.constraint
        if constraint is not None and guide is None:
            guide = self.grammars.open(constraint, request.sampling.stop_token_ids)
        strings = tuple(string for string in request.sampling.stop if string)
        stop_ids = frozenset(request.sampling.stop_token_ids)
        return Sequence(
            request=request,
            adapter=adapter,
            seed=request_seed(request.sampling),
            limit=min(request.sampling.max_tokens, self.max_context - len(request.prompt_ids)),
            stops=StopStrings(strings, self.tokenizer.tokenizer()) if strings else None,
            stop_ids=stop_ids,
            forbidden=stop_ids if request.sampling.min_tokens else frozenset(),
            guide=guide,
            bias=make_bias(request.sampling.logit_bias, self.model.vocab_size, self.model.device),
            penalties=make_penalties(request.sampling, request.prompt_ids),
        )

    def submit(self, sequence: Sequence) -> None:
        self.adapters.in_use.enter(sequence.request.adapter)
        self.scheduler.waiting.open(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """Free its place; unknown or finished ones are ignored."""
        if sequence.row != NOWHERE:
            self.scheduler.leave(sequence.row)
        elif sequence in self.scheduler.waiting:
            self.scheduler.waiting.remove(sequence.owner, sequence)
        else:
            return
        self._ended(sequence)

    def drop_adapter(self, name: str) -> Future[None]:
        """Drops the adapter after its last request has ended."""
        leaving = self.adapters.leave(name)
        self._drop_unused_adapters()
        return leaving

    def sleep(self) -> Future[None]:
        """Sleeps after the last running request has ended and the caches are freed."""
        self.asleep = True
        asleep: Future[None] = Future()
        self._sleeping.append(asleep)
        self._finish_sleep()
        return asleep

    def wake(self) -> None:
        self.asleep = False
        for future in self._sleeping:
            future.set_exception(WorkerError("the engine was woken before it slept"))
        self._sleeping = []

    def abandon(self, error: ARTError) -> None:
        """The engine ends: fail those who wait for an adapter to go or for sleep."""
        self.adapters.abandon(error)
        for future in self._sleeping:
            future.set_exception(error)
        self._sleeping = []

    @torch.inference_mode()
    def score(self, name: str | None, rows: list[list[int]]) -> list[list[float]]:
        """See `Engine.score`. Raises: NotFoundError, RequestError."""
        adapter = self.adapters.number(name)
        check_rows(rows, max_context=self.max_context, vocab_size=self.model.vocab_size)
        return [list(one.logprobs) for one in rank_rows(self.model, adapter, rows)]

    @torch.inference_mode()
    def rank(
        self, name: str | None, rows: list[list[int]], most: int, alternatives: Alternatives | None = None
    ) -> list[Ranked]:
        """See `Engine.rank`. Raises: NotFoundError, RequestError."""
        adapter = self.adapters.number(name)
        check_ranked(rows, most, max_context=self.max_context, vocab_size=self.model.vocab_size)
        check_alternatives(rows, alternatives, vocab_size=self.model.vocab_size)
        return rank_rows(self.model, adapter, rows, most, alternatives)

    def health(self) -> EngineHealth:
        scheduler = self.scheduler
        return EngineHealth(
            base_model=self.model.name,
            max_context=self.max_context,
            vocab_size=self.model.vocab_size,
            device=str(self.model.device),
            dtype=str(self.model.dtype).removeprefix("torch."),
            adapters=list(self.adapters.names()),
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            max_waiting=self.options.max_waiting,
            asleep=self.asleep,
            steps=self.steps,
            prompt_tokens=scheduler.prompt_tokens,
            reused_tokens=scheduler.reused_tokens,
            sampled_tokens=self.sampled_tokens,
            own_pass=isinstance(self.model.passes, Decoder),
            preempted=scheduler.preempted,
        )

    def _rows_per_pass(self) -> list[np.ndarray | None]:
        """Returns the rows that share a forward pass: all (None), or the base's with its adapters', then each
        whole model's.
        """
        numbers = self.adapters.whole_models.numbers
        if not numbers:
            return [None]
        adapter_R = self.scheduler.table.adapter
        return [~np.isin(adapter_R, numbers), *(adapter_R == number for number in numbers)]

    def _admit(self) -> None:
        with torch.inference_mode():
            if not self.asleep:
                self.scheduler.admit()
            self.scheduler.make_room()

    @torch.inference_mode()
    def _forward(self, batch: StepBatch) -> torch.Tensor:
        self.steps += 1
        return self.model.forward(batch.ids, batch.positions, batch.wanted, batch.adapter_T, batch.attention)

    @torch.inference_mode()
    def _sample(self, batch: StepBatch, logits: torch.Tensor) -> tuple[Drawn, dict[int, RequestError]]:
        """Returns the tokens of the sampled rows, and the rows whose constraint failed."""
        if not len(batch.sampled):
            return Drawn([], [], {}, {}), {}
        running = [self.scheduler.running[row] for row in batch.sampled.tolist()]
        counts = np.asarray([len(one.completion) for one in running])
        logits, failed = shape_logits(logits, running)
        return sample(logits, self.scheduler.sampling, batch.sampled, counts), failed

    def _deliver(self, batch: StepBatch, drawn: Drawn, failed: dict[int, RequestError]) -> list[Event]:
        table, running = self.scheduler.table, self.scheduler.running
        table.computed[batch.rows] += batch.counts
        table.ids[batch.sampled, table.known[batch.sampled]] = drawn.tokens
        table.known[batch.sampled] += 1
        self.sampled_tokens += len(drawn.tokens)
        events: list[Event] = []
        sampled = zip(batch.sampled.tolist(), drawn.tokens, drawn.logprobs, strict=True)
        for number, (row, token, logprob) in enumerate(sampled):
            sequence = running[row]
            news: Delta | ARTError | None
            self.scheduler.sampled(sequence)
            if number in failed:
                news = failed[number]
            elif logprob == logprob:
                top, candidates = drawn.tops.get(number), drawn.candidates.get(number, b"")
                news = appended(sequence, token, logprob, top, candidates)
            else:
                news = WorkerError(
                    f"{self.model.name!r} with adapter {sequence.request.adapter!r} gave logits of nan"
                )
            if news is None:
                continue
            events.append((sequence, news))
            if isinstance(news, ARTError) or news.finish_reason is not None:
                self.scheduler.leave(row)
                self._ended(sequence)
        return events

    def _ended(self, sequence: Sequence) -> None:
        self.scheduler.waiting.close(sequence)
        self.adapters.in_use.leave(sequence.request.adapter)
        self._drop_unused_adapters()
        self._finish_sleep()

    def _drop_unused_adapters(self) -> None:
        for number in self.adapters.drop_unused():
            self.scheduler.table.forget_adapter(number)

    def _finish_sleep(self) -> None:
        if self._sleeping and not self.scheduler.running:
            self.scheduler.forget()
            for future in self._sleeping:
                future.set_result(None)
            self._sleeping = []
