"""The engine without threads: requests in, steps, deltas out. Everything here runs on one thread.

`step` is the whole algorithm (continuous batching: Yu et al., "Orca", 2022): requests join and leave between
steps, and one forward pass moves all of them on, those that decode by one token, those whose prompt is read
by many.
"""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import torch

from art.engine.builtin.cache import BUCKET, RowCache, cache_budget
from art.engine.builtin.catalog import AdapterCatalog, WholeModels
from art.engine.builtin.model import CausalModel, rank_rows
from art.engine.builtin.sampler import Drawn, make_bias, make_penalties, request_seed, sample, shape_logits
from art.engine.builtin.scheduler import Scheduler
from art.engine.builtin.sequence import NOWHERE, Sequence, StopStrings, TokenizerLoader, appended
from art.engine.builtin.step_batch import StepBatch, make_batch
from art.engine.constraints import Grammars, Guide
from art.engine.limits import check_ranked, check_request, check_rows
from art.engine.protocol import Delta, GenerateRequest, Ranked
from art.errors import ARTError, RequestError, WorkerError
from art.wire.engine import BuiltinOptions, EngineHealth

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
        self.adapters = AdapterCatalog(model.adapters, WholeModels(model, options))
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
    def rank(self, name: str | None, rows: list[list[int]], most: int) -> list[Ranked]:
        """See `Engine.rank`. Raises: NotFoundError, RequestError."""
        adapter = self.adapters.number(name)
        check_ranked(rows, most, max_context=self.max_context, vocab_size=self.model.vocab_size)
        return rank_rows(self.model, adapter, rows, most)

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
            recorded=self.model.flat is not None,
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
