"""An engine's worker that sleeps in place of computing, started as every worker is.

Its face is the real one (`art.engine.worker_process`): start line, ready line, routes, one WebSocket. It has
`places` for requests, which each take `seconds`; others wait for a place. So a machine with few cores can
have many of them.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from art.engine.protocol import Delta, GenerateRequest, Ranked, Rows, Sink
from art.engine.worker_process import run_worker
from art.errors import OverloadedError, RequestError
from art.wire.engine import Alternatives, EngineHealth, WorkerStart

PLACES, SECONDS, MAX_WAITING = 16, 0.2, 4096
TOKEN = 65
"""The id that it says."""


@dataclass(eq=False)
class SleepingCall:
    request: GenerateRequest
    sink: Sink
    timer: asyncio.TimerHandle | None = field(default=None)


class SleepingEngine:
    """See `art.engine.protocol.ServedEngine`."""

    def __init__(self, base_model: str, places: int = PLACES, seconds: float = SECONDS) -> None:
        self.base_model, self.places, self.seconds = base_model, places, seconds
        self.adapters: dict[str, Path] = {}
        self._running: set[SleepingCall] = set()
        self._waiting: deque[SleepingCall] = deque()
        self._steps = 0

    def health(self) -> EngineHealth:
        return EngineHealth(
            base_model=self.base_model,
            max_context=4096,
            vocab_size=512,
            device="none",
            dtype="float32",
            adapters=list(self.adapters),
            running=len(self._running),
            waiting=len(self._waiting),
            max_waiting=MAX_WAITING,
            steps=self._steps,
        )

    def begin(self, request: GenerateRequest, sink: Sink) -> SleepingCall:
        if len(self._waiting) >= MAX_WAITING:
            raise OverloadedError("all places are taken", code="queue_full")
        call = SleepingCall(request, sink)
        self._waiting.append(call)
        self._fill()
        return call

    def cancel(self, call: SleepingCall) -> None:
        if call in self._waiting:
            self._waiting.remove(call)
        elif call in self._running:
            assert call.timer is not None
            call.timer.cancel()
            self._running.discard(call)
            self._fill()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self.places:
            call = self._waiting.popleft()
            self._running.add(call)
            call.timer = asyncio.get_running_loop().call_later(self.seconds, self._end, call)

    def _end(self, call: SleepingCall) -> None:
        self._steps += 1
        self._running.discard(call)
        self._fill()
        ids = [TOKEN] * call.request.sampling.max_tokens
        call.sink(Delta(token_ids=ids, logprobs=[-1.0] * len(ids), finish_reason="length"))

    async def load_adapter(self, name: str, path: Path) -> None:
        self.adapters[name] = path

    async def unload_adapter(self, name: str) -> None:
        self.adapters.pop(name, None)

    async def score(self, adapter: str | None, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[-1.0] * (len(row) - 1) for row in rows]

    async def rank(
        self, adapter: str | None, rows: Rows, most: int, alternatives: Alternatives | None = None
    ) -> list[Ranked]:
        raise RequestError("a sleeping engine ranks nothing", status=400, code="unsupported")

    async def sleep(self) -> None:
        """It does nothing else."""

    async def wake(self) -> None:
        """There is nothing to give back."""

    async def close(self) -> None:
        for call in list(self._running):
            self.cancel(call)


async def start_engine(start: WorkerStart) -> SleepingEngine:
    return SleepingEngine(start.base_model)


if __name__ == "__main__":
    sys.exit(run_worker(start_engine))
