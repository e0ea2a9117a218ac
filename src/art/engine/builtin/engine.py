"""The builtin engine: `Engine` over an `EngineCore` that steps in its own thread.

The caller's event loop never waits for torch. Calls are put into an inbox that the step thread empties
between two steps; what a step produced goes back to each event loop in one callback.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from art.engine.builtin.compiling import Compilers, Waiter
from art.engine.builtin.core import EngineCore, Event, read_folder
from art.engine.builtin.model import load_model
from art.engine.builtin.scheduler import Sequence as Running
from art.engine.constraints import Guide
from art.engine.protocol import Delta, EngineInfo, GenerateRequest, Ranked, Rows, Sink
from art.errors import ARTError, DeadlineError, OverloadedError, WorkerError
from art.wire.engine import Alternatives, BuiltinOptions, EngineHealth
from art.wire.records import Bits

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class CompletionCall:
    """One `generate`; `sink` takes its news on `loop`."""

    loop: asyncio.AbstractEventLoop
    sink: Sink
    sequence: Running | None = None
    cancelled: bool = False
    waiter: Waiter | None = None
    """What waits for its constraint."""


@dataclass(frozen=True, slots=True)
class StepThreadTask:
    """A task between two steps, with its replacement if the engine has ended."""

    run: Callable[[], None]
    fail: Callable[[ARTError], None]


def deliver(loop: asyncio.AbstractEventLoop, items: list[tuple[CompletionCall, Delta | ARTError]]) -> None:
    """Passes each caller its deltas, in one turn of their loop."""

    def put() -> None:
        for call, news in items:
            if not call.cancelled:
                call.sink(news)

    if not loop.is_closed():
        loop.call_soon_threadsafe(put)


async def answer_within(future: Future[T], seconds: float, what: str) -> T:
    """The step thread's answer. Raises: DeadlineError, and what the answer raises."""
    try:
        # Shielded: a caller who gives up must not cancel what the step thread will complete.
        async with asyncio.timeout(seconds):
            return await asyncio.shield(asyncio.wrap_future(future))
    except TimeoutError as error:
        raise DeadlineError(f"the engine did not finish within {seconds:.0f} s: {what}") from error


logger = logging.getLogger(__name__)

CONTROL_SECONDS = 120.0
"""Deadline of load, score and wake. Unloading and sleeping wait for running requests and have the next
one."""
DRAIN_SECONDS = 1800.0


class BuiltinEngine:
    """See `art.engine.protocol.Engine`. Made with `await BuiltinEngine.start(...)`."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._inbox: deque[StepThreadTask] = deque()
        self._wakeup = threading.Condition()
        self._calls: dict[Running, CompletionCall] = {}
        self._begun = 0
        """Calls accepted, counted under the lock; `_ended` is counted on the step thread."""
        self._ended = 0
        self._stopping = False
        self._gone = False
        """The step thread takes no more orders."""
        self._error = ""
        self._compilers = Compilers(core.grammars)
        self._thread = threading.Thread(target=self._run, name="art-engine-steps", daemon=True)
        self._thread.start()

    @classmethod
    async def start(
        cls, base_model: str, options: BuiltinOptions | None = None, *, bits: Bits = 16
    ) -> BuiltinEngine:
        """Load the model. Raises: ConfigurationError."""
        options = options or BuiltinOptions()
        model = await asyncio.to_thread(load_model, base_model, options, bits)
        return cls(EngineCore(model, options))

    async def info(self) -> EngineInfo:
        return EngineInfo.from_health(self.health())

    def health(self) -> EngineHealth:
        """Returns the health, read from outside the step thread: numbers may be a step old."""
        health = self._core.health()
        health.waiting = max(0, self._begun - self._ended - health.running)
        health.error = self._error
        return health

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        """See `Engine.generate`."""
        queue: asyncio.Queue[Delta | ARTError] = asyncio.Queue()
        call = self.begin(request, queue.put_nowait)
        try:
            while True:
                news = await queue.get()
                if isinstance(news, ARTError):
                    raise news
                yield news
                if news.finish_reason is not None:
                    return
        finally:
            self.cancel(call)

    def begin(self, request: GenerateRequest, sink: Sink) -> CompletionCall:
        """Queues a request; `sink` is called with each delta, or with the error that ended it.

        Raises: OverloadedError, WorkerError.
        """
        self._check_alive()
        limit = self._core.options.max_waiting + self._core.scheduler.max_running
        call = CompletionCall(asyncio.get_running_loop(), sink)
        constraint, stops = request.sampling.constraint, request.sampling.stop_token_ids
        guide = None if constraint is None else self._core.grammars.find_compiled(constraint, stops)
        with self._wakeup:
            open_now = self._begun - self._ended
            if open_now >= limit:
                raise OverloadedError(
                    f"{open_now} requests are waiting or running, the limit is {limit}; try again later",
                    code="queue_full",
                )
            if constraint is not None and guide is None:
                # In threads of their own: neither a step nor the event loop waits for a compiler.
                call.waiter = self._compilers.ask(
                    request.owner, constraint, stops, lambda opened: self._on_compiled(call, request, opened)
                )
            self._begun += 1
            if constraint is None or guide is not None:
                self._post(self._entry(call, lambda: self._submit(call, request, guide)))
        return call

    def cancel(self, call: CompletionCall) -> None:
        """Free the request's place; after its end this does nothing."""
        if not call.cancelled:
            call.cancelled = True
            withdrawn = call.waiter is not None and self._compilers.withdraw(call.waiter)
            with self._wakeup:
                self._post(StepThreadTask(lambda: self._cancel(call, withdrawn), lambda error: None))

    async def load_adapter(self, name: str, path: Path) -> None:
        """See `Engine.load_adapter`. A whole model is read between two steps: requests wait that long."""
        adapter = await asyncio.to_thread(read_folder, path)
        await self._call(lambda: self._core.adapters.add(name, adapter), f"load adapter {name!r}")

    async def unload_adapter(self, name: str) -> None:
        """See `Engine.unload_adapter`."""
        gone = await self._call(lambda: self._core.drop_adapter(name), f"unload adapter {name!r}")
        await answer_within(gone, DRAIN_SECONDS, f"the last request of adapter {name!r}")

    async def score(self, adapter: str | None, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """See `Engine.score`."""
        copied = [list(row) for row in rows]
        return await self._call(lambda: self._core.score(adapter, copied), "score")

    async def rank(
        self, adapter: str | None, rows: Rows, most: int, alternatives: Alternatives | None = None
    ) -> list[Ranked]:
        """See `Engine.rank`."""
        copied = [list(row) for row in rows]
        return await self._call(lambda: self._core.rank(adapter, copied, most, alternatives), "rank")

    async def sleep(self) -> None:
        """See `Engine.sleep`."""
        asleep = await self._call(self._core.sleep, "sleep")
        await answer_within(asleep, DRAIN_SECONDS, "the running requests before sleep")

    async def wake(self) -> None:
        """See `Engine.wake`."""
        await self._call(self._core.wake, "wake")

    async def close(self) -> None:
        """See `Engine.close`: requests that are not done fail."""
        with self._wakeup:
            self._stopping = True
            self._wakeup.notify()
        self._compilers.close()
        await asyncio.to_thread(self._thread.join, CONTROL_SECONDS)

    def _check_alive(self) -> None:
        if self._error:
            raise WorkerError(self._error)
        if self._stopping:
            raise WorkerError("the engine is closed")

    def _entry(self, call: CompletionCall, run: Callable[[], None]) -> StepThreadTask:
        """An order about a call that is not running yet."""
        return StepThreadTask(run, lambda error: deliver(call.loop, [(call, error)]))

    def _on_compiled(self, call: CompletionCall, request: GenerateRequest, opened: Guide | ARTError) -> None:
        """A constraint was compiled, or could not be; this runs on the compiler's thread."""
        if isinstance(opened, ARTError):
            order = self._entry(call, lambda: self._refuse(call, opened))
        else:
            order = self._entry(call, lambda: self._submit(call, request, opened))
        with self._wakeup:
            self._post(order)

    def _post(self, order: StepThreadTask) -> None:
        """Give an order; the lock is held."""
        if self._gone:
            order.fail(WorkerError(self._error or "the engine is closed"))
            return
        self._inbox.append(order)
        self._wakeup.notify()

    async def _call(self, action: Callable[[], T], what: str) -> T:
        """Run between two steps, on the step thread."""
        self._check_alive()
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(action())
            except ARTError as error:
                done.set_exception(error)

        with self._wakeup:
            self._post(StepThreadTask(run, done.set_exception))
        return await answer_within(done, CONTROL_SECONDS, what)

    # The rest runs on the step thread.

    def _run(self) -> None:
        try:
            while self._next_actions():
                self._deliver(self._core.step())
            self._fail_all(WorkerError("the engine was closed before the request was done"))
        except Exception as error:
            logger.exception("the engine's step loop ended")
            self._error = f"the engine's step loop ended: {type(error).__name__}: {error}"
            self._fail_all(WorkerError(self._error))

    def _next_actions(self) -> bool:
        """Wait for something to do and do what is in the inbox; False when it is time to stop."""
        with self._wakeup:
            # Woken by every call; the timeout only bounds the wait.
            while not (self._inbox or self._core.has_work or self._stopping):
                self._wakeup.wait(timeout=60.0)
            orders, self._inbox = self._inbox, deque()
        for order in orders:
            order.run()
        return not self._stopping

    def _submit(self, call: CompletionCall, request: GenerateRequest, guide: Guide | None) -> None:
        if call.cancelled:
            self._ended += 1
            return
        try:
            call.sequence = self._core.make_sequence(request, guide)
        except ARTError as error:
            self._refuse(call, error)
            return
        self._calls[call.sequence] = call
        self._core.submit(call.sequence)

    def _refuse(self, call: CompletionCall, error: ARTError) -> None:
        self._ended += 1
        deliver(call.loop, [(call, error)])

    def _cancel(self, call: CompletionCall, withdrawn: bool) -> None:
        if withdrawn:  # it never came here
            self._ended += 1
        elif call.sequence is not None and self._calls.pop(call.sequence, None) is not None:
            self._ended += 1
            self._core.cancel(call.sequence)

    def _deliver(self, events: list[Event]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[CompletionCall, Delta | ARTError]]] = {}
        for sequence, news in events:
            call = self._calls[sequence]
            by_loop.setdefault(call.loop, []).append((call, news))
            if isinstance(news, ARTError) or news.finish_reason is not None:
                del self._calls[sequence]
                self._ended += 1
        for loop, items in by_loop.items():
            deliver(loop, items)

    def _fail_all(self, error: ARTError) -> None:
        with self._wakeup:
            self._stopping = self._gone = True
            orders, self._inbox = self._inbox, deque()
        for order in orders:
            order.fail(error)
        for call in self._calls.values():
            deliver(call.loop, [(call, error)])
        self._core.abandon(error)
        self._calls.clear()
        self._ended = self._begun
