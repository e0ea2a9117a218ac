"""An engine that emits what a test tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from art.engine.protocol import Delta, EngineInfo, GenerateRequest, Ranked, Rows
from art.errors import NotFoundError
from art.wire.engine import Alternatives
from art.wire.samples import candidates_record


@dataclass(kw_only=True)
class Script:
    """One completion: its ids, and how it ends."""

    ids: Sequence[int]
    stop_string: str | None = None
    chunk: int = 1
    """Ids a delta, when streamed."""


class ScriptedEngine:
    """Implements `Engine`. `answer` makes the script of each request, or raises."""

    def __init__(self, answer: Callable[[GenerateRequest], Script]) -> None:
        self.answer = answer
        self.requests: list[GenerateRequest] = []
        self.emitted: dict[str, list[int]] = {}
        self.cancelled: list[str] = []
        self.gate: asyncio.Event | None = None
        """While it is not set, requests wait before their first id."""
        self.adapters: set[str] = set()

    @staticmethod
    def logprobs(count: int) -> list[float]:
        """Numbers that float32 holds exactly and float16 does not."""
        return [float(x) for x in -np.linspace(0.00123456, 9.7654321, count, dtype=np.float32)]

    @staticmethod
    def beside(token: int, logprob: float, count: int) -> list[tuple[int, float]]:
        """The most probable ids: the sampled one, and ids after it that are less and less likely."""
        return [(token + place, logprob - place * 0.5) for place in range(count)]

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        self.requests.append(request)
        if request.adapter is not None and request.adapter not in self.adapters:
            raise NotFoundError(f"no adapter {request.adapter!r}", status=404)
        script = self.answer(request)
        ids = list(script.ids)[: request.sampling.max_tokens]
        finish = "stop" if len(ids) == len(script.ids) else "length"
        logprobs = self.logprobs(len(ids))
        try:
            if self.gate is not None:
                await self.gate.wait()
            step = script.chunk if request.stream else max(len(ids), 1)
            for start in range(0, max(len(ids), 1), step):
                await asyncio.sleep(0)
                last = start + step >= len(ids)
                self.emitted.setdefault(request.request_id, []).extend(ids[start : start + step])
                told = zip(ids[start : start + step], logprobs[start : start + step], strict=True)
                most = request.sampling.top_logprobs
                yield Delta(
                    candidates=b"".join(
                        candidates_record([token, token + 1]) for token in ids[start : start + step]
                    )
                    if request.sampling.top_p < 1
                    else b"",
                    top_logprobs=[self.beside(*one, most) for one in told] if most else (),
                    token_ids=ids[start : start + step],
                    logprobs=logprobs[start : start + step],
                    finish_reason=finish if last else None,
                    stop_string=script.stop_string if last else None,
                )
        except (GeneratorExit, asyncio.CancelledError):
            self.cancelled.append(request.request_id)
            raise

    async def info(self) -> EngineInfo:
        return EngineInfo(base_model="tiny", max_context=512, vocab_size=512, device="cpu", dtype="none")

    async def load_adapter(self, name: str, path: Path) -> None:
        self.adapters.add(name)

    async def unload_adapter(self, name: str) -> None:
        self.adapters.remove(name)

    async def score(self, adapter: str | None, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        return [self.logprobs(len(row) - 1) for row in rows]

    async def rank(
        self, adapter: str | None, rows: Rows, most: int, alternatives: Alternatives | None = None
    ) -> list[Ranked]:
        """The row's own ids are the most probable ones. Each draw is id 7, at -0.5; a named id has its own
        number below 0.
        """
        ranked, asked = [], alternatives or Alternatives()
        for row in rows:
            scores = self.logprobs(len(row) - 1)
            own = zip(row[1:], scores, strict=True)
            tops = [self.beside(*one, most) for one in own] if most else []
            drawn = [[(7, -0.5)] * asked.draws for _ in scores] if asked.draws else []
            named = [-float(token) for _, token in asked.ids]
            ranked.append(Ranked(logprobs=scores, tops=tops, named=named, drawn=drawn))
        return ranked

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...

    async def close(self) -> None: ...
