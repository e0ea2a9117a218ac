"""`Engine` over the HTTP of a vLLM server: which requests wait, which run, and which are refused here.

Waiting requests wait here and not in vLLM: owners take turns and each owner's requests keep their order, a
request that is cancelled while it waits costs nothing, and sleep holds what has not begun. A few more than
vLLM has places for are sent, so that a place never waits for the next request's way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from art.engine.limits import check_bias, check_ranked, check_request, check_rows
from art.engine.protocol import Deadlines, Delta, EngineInfo, GenerateRequest, Ranked, Rows, Sink
from art.errors import ARTError, DeadlineError, OverloadedError, RequestError, WorkerError
from art.process.fair_queue import FairQueue
from art.wire.engine import Alternatives, EngineHealth
from art_extensions.vllm.adapters import VllmAdapters
from art_extensions.vllm.client import (
    VllmClient,
    completion_body,
    rank_body,
    read_ranked,
    read_scores,
    score_body,
)
from art_extensions.vllm.options import VllmOptions


@dataclass(frozen=True, kw_only=True)
class VllmServerFacts:
    """The server and the one model that it serves."""

    base_model: str
    model: str
    """The model's name at the server."""
    max_context: int
    vocab_size: int
    device: str
    dtype: str
    end_of_text: int | None
    version: str
    sleep_mode: bool
    attached: bool
    """Whether somebody else started the server."""


logger = logging.getLogger(__name__)

METRICS_SECONDS = 1.0
"""Seconds between two looks at the progress of vLLM's engine, while something runs."""
SCORES_AT_ONCE = 16


@dataclass(slots=True, eq=False)
class VllmCall:
    """One `generate`."""

    request: GenerateRequest
    news: asyncio.Queue[Delta | ARTError] = field(default_factory=asyncio.Queue)
    task: asyncio.Task[None] | None = None
    """The task that samples it; None while it waits."""
    ended: bool = False


class VllmEngine:
    """See `art.engine.protocol.Engine`; made by `art_extensions.vllm.start`."""

    def __init__(
        self,
        client: VllmClient,
        served: VllmServerFacts,
        options: VllmOptions,
        deadlines: Deadlines | None = None,
    ) -> None:
        self.served = served
        self.client = client
        self._options = options
        self._deadlines = deadlines or Deadlines()
        self.keeper: object = None
        """What lives as long as it does: the server that was started for it."""
        self._adapters = VllmAdapters(client, served.model, options)
        self._waiting: FairQueue[VllmCall] = FairQueue()
        self._running: set[VllmCall] = set()
        self._places = options.max_running + max(4, options.max_running // 8)
        self._asleep = False
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._counters: dict[str, int] = {}
        self._failure: WorkerError | None = None
        self._watch = asyncio.create_task(self._watch_progress())

    def health(self) -> EngineHealth:
        """Counters are up to a second old."""
        open_now = len(self._running) + len(self._waiting)
        running = min(len(self._running), self._options.max_running)
        return EngineHealth(
            base_model=self.served.base_model,
            max_context=self.served.max_context,
            vocab_size=self.served.vocab_size,
            device=self.served.device,
            dtype=self.served.dtype,
            adapters=self._adapters.names,
            running=running,
            waiting=open_now - running,
            max_waiting=self._options.max_waiting,
            asleep=self._asleep,
            error=str(self._failure or ""),
        ).model_copy(update=self._counters)

    async def info(self) -> EngineInfo:
        """See `Engine.info`. A server of our own is asked whether it lives.

        Raises: WorkerDiedError, WorkerStalledError.
        """
        self._check_open()
        if not self.served.attached:
            await self.client.get("/health", self._deadlines.health)
        return EngineInfo.from_health(self.health())

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        """See `Engine.generate`."""
        call = self._begin(request)
        try:
            while True:
                news = await call.news.get()
                if isinstance(news, ARTError):
                    raise news
                yield news
                if news.finish_reason is not None:
                    return
        finally:
            self._cancel(call)

    def begin(self, request: GenerateRequest, sink: Sink) -> asyncio.Task[None]:
        """See `ServedEngine.begin`. Raises: OverloadedError, WorkerError, RequestError (it has images)."""
        if min(request.prompt_ids, default=0) < 0:
            raise RequestError(
                "images are not sent to an engine on another machine: serve the model without --cluster",
                status=400,
                code="no_images",
            )
        return asyncio.create_task(self._send_news(self._begin(request), sink))

    def cancel(self, call: asyncio.Task[None]) -> None:
        """See `ServedEngine.cancel`."""
        call.cancel()

    async def _send_news(self, call: VllmCall, sink: Sink) -> None:
        try:
            while True:
                news = await call.news.get()
                sink(news)
                if isinstance(news, ARTError) or news.finish_reason is not None:
                    return
        finally:
            self._cancel(call)

    def _begin(self, request: GenerateRequest) -> VllmCall:
        self._check_open()
        self._check(request)
        open_now = len(self._running) + len(self._waiting)
        limit = self._options.max_waiting + self._options.max_running
        if open_now >= limit:
            raise OverloadedError(
                f"{open_now} requests are waiting or running, the limit is {limit}; try again later",
                code="queue_full",
            )
        call = VllmCall(request)
        self._adapters.in_use.enter(request.adapter)
        self._waiting.put(request.owner, call)
        self._send_on()
        return call

    def _cancel(self, call: VllmCall) -> None:
        """Closes the connection, so that vLLM drops the request; after its end this does nothing."""
        if call.ended:
            return
        call.ended = True
        if call.task is None:
            self._waiting.remove(call.request.owner, call)
            self._adapters.in_use.leave(call.request.adapter)
        else:
            call.task.cancel()

    async def load_adapter(self, name: str, path: Path) -> None:
        """See `Engine.load_adapter`."""
        self._check_open()
        await self._adapters.load(name, path)

    async def unload_adapter(self, name: str) -> None:
        """See `Engine.unload_adapter`."""
        self._check_open()
        try:
            await self._adapters.unload(name, self._deadlines.drain)
        except TimeoutError as error:
            raise DeadlineError(
                f"requests of adapter {name!r} run for {self._deadlines.drain:g} s already"
            ) from error

    async def score(self, adapter: str | None, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """See `Engine.score`."""
        model = self._adapters.model(adapter)
        check_rows(rows, max_context=self.served.max_context, vocab_size=self.served.vocab_size)
        copied = [list(row) for row in rows]
        replies = await self._ask_each(adapter, [score_body(row, model) for row in copied])
        return list(map(read_scores, replies, copied))

    async def rank(
        self, adapter: str | None, rows: Rows, most: int, alternatives: Alternatives | None = None
    ) -> list[Ranked]:
        """See `Engine.rank`."""
        if alternatives is not None:
            raise RequestError(
                "vLLM tells neither logprobs of chosen ids nor draws in a prompt's places: use the engine "
                "'builtin'",
                status=400,
                code="unsupported_parameter",
            )
        model = self._adapters.model(adapter)
        check_ranked(rows, most, max_context=self.served.max_context, vocab_size=self.served.vocab_size)
        copied = [list(row) for row in rows]
        replies = await self._ask_each(adapter, [rank_body(row, model, most) for row in copied])
        return [read_ranked(reply, row, most) for reply, row in zip(replies, copied, strict=True)]

    async def _ask_each(self, adapter: str | None, bodies: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """A few at once; the adapter stays until all are answered."""
        self._check_open()
        places = asyncio.Semaphore(SCORES_AT_ONCE)

        async def complete(body: dict[str, Any]) -> dict[str, Any]:
            async with places:
                reply: dict[str, Any] = await self.client.post("/v1/completions", body)
                return reply

        with self._adapters.in_use.using(adapter):
            return await asyncio.gather(*map(complete, bodies))

    async def sleep(self) -> None:
        """See `Engine.sleep`; memory is given back where vLLM runs in sleep mode."""
        self._check_open()
        self._asleep = True
        try:
            async with asyncio.timeout(self._deadlines.drain):
                await self._quiet.wait()
        except TimeoutError as error:
            raise DeadlineError(
                f"requests run for {self._deadlines.drain:g} s already, before sleep"
            ) from error
        if not self._asleep:
            raise WorkerError("the engine was woken before it slept")
        if self.served.sleep_mode:
            await self.client.post("/sleep?level=1")

    async def wake(self) -> None:
        """See `Engine.wake`."""
        self._check_open()
        if self._asleep and self.served.sleep_mode and self._quiet.is_set():
            await self.client.post("/wake_up")
        self._asleep = False
        self._send_on()

    async def close(self) -> None:
        """See `Engine.close`; the server itself belongs to whoever started it."""
        self.fail(WorkerError("the engine is closed"))
        self._watch.cancel()
        await self.client.close()

    def fail(self, failure: WorkerError) -> None:
        """The server is gone: everything that is open fails, and what comes does."""
        self._failure = failure = self._failure or failure
        for call in [*self._waiting.clear(), *self._running]:
            if not call.ended:
                call.ended = True
                call.news.put_nowait(type(failure)(str(failure)))
                if call.task is not None:
                    call.task.cancel()

    def _check_open(self) -> None:
        """Raises the failure as an exception of its own: many requests raise it."""
        if (failure := self._failure) is not None:
            raise type(failure)(str(failure))

    def _check(self, request: GenerateRequest) -> None:
        self._adapters.model(request.adapter)
        vocab_size = self.served.vocab_size
        check_request(request, max_context=self.served.max_context, vocab_size=vocab_size)
        check_bias(request.sampling.logit_bias, vocab_size=vocab_size)

    def _send_on(self) -> None:
        while self._waiting and len(self._running) < self._places and not self._asleep:
            call = self._waiting.take_next()
            self._running.add(call)
            self._quiet.clear()
            call.task = asyncio.create_task(self._run(call))

    async def _run(self, call: VllmCall) -> None:
        request = call.request
        try:
            # Checked at the beginning: an adapter may leave while its requests wait for their turn.
            model = self.served.model if request.adapter is None else request.adapter
            body = completion_body(
                request,
                model,
                self.served.max_context - len(request.prompt_ids),
                self.served.end_of_text,
                own_masks=self._options.own_masks,
            )
            async with contextlib.aclosing(self.client.complete(body, request.images)) as deltas:
                async for delta in deltas:
                    self._put_delta(call, delta)
            if not call.ended:
                self._put_delta(call, WorkerError("vLLM's reply ended before the completion did"))
        except ARTError as error:
            self._put_delta(call, error)
        finally:
            self._running.discard(call)
            self._adapters.in_use.leave(request.adapter)
            if not self._running:
                self._quiet.set()
            self._send_on()

    def _put_delta(self, call: VllmCall, news: Delta | ARTError) -> None:
        if call.ended:
            return
        if isinstance(news, ARTError) or news.finish_reason is not None:
            call.ended = True
        elif not news.token_ids:
            return
        call.news.put_nowait(news)

    async def _watch_progress(self) -> None:
        """Steps must be seen to grow while requests run, or the engine is taken for stuck."""
        answered = True
        while True:
            try:
                self._counters = await self.client.metrics()
                answered = True
            except ARTError as error:
                if answered:  # once for each silence
                    logger.warning("no metrics from vLLM: %s", error)
                answered = False
            await asyncio.sleep(METRICS_SECONDS)
