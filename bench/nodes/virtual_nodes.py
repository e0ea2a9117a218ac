"""Engines on nodes that are not there: they sample, load, hang, are cut off, die and come back.

A `VirtualEngine` implements `art.engine.protocol.Engine` as a client of a remote worker behaves: a death
breaks what is open, silence ends in `WorkerStalledError`. Its ids follow from the weights that it has loaded,
the prompt and the place, so that a wrong adapter, a lost id and a doubled one show in the completion.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from art.engine.protocol import Delta, EngineInfo, GenerateRequest, Ranked, Rows
from art.errors import (
    DeadlineError,
    NotFoundError,
    WorkerDiedError,
    WorkerError,
    WorkerStalledError,
    WorkerUnreachableError,
)
from art.process.worker import SharedDisk, WorkerDisk, WorkerSpec
from art.server.workers.health_board import HealthBoard
from art.wire.engine import Alternatives

STALL_SECONDS = 60.0
"""Silence after which a client takes its worker for stuck, as `Deadlines.stall`."""
CONTROL_SECONDS = 120.0
"""Longest call of another kind, as `Deadlines.control`."""
VOCABULARY = 50_021


def sampled_id(weights: int, rollout: int, turn: int, place: int) -> int:
    """The id that weights give in a place of a completion."""
    return (weights * 1_000_003 + rollout * 7_919 + turn * 104_729 + place * 31) % VOCABULARY


def score_of(weights: int) -> float:
    return -1.0 - weights * 1e-3


@dataclass(frozen=True, kw_only=True)
class Hardships:
    """What happens to the nodes. Times in seconds."""

    mean_life: float = 1000 * 3600.0
    """Of one node: lives are drawn from an exponential law."""
    lost_rack: int = 0
    """Nodes that die at the same moment, and stay away for `rack_repair`."""
    rack_at: float = 1800.0
    rack_repair: float = 600.0
    cuts: int = 0
    """Nodes that answer nobody for a while, each at a moment of its own within the first `cuts_within`. Of
    half of them the connections break at once, too.
    """
    cuts_within: float = 3600.0
    cut: tuple[float, float] = (20.0, 240.0)
    slow_loads: float = 0.0
    """Share of loads that hang."""


@dataclass(kw_only=True, slots=True, eq=False)
class Node:
    """A machine with one engine."""

    number: int
    worker: VirtualWorker | None = None
    back_at: float = 0.0
    reachable_at: float = 0.0


@dataclass(eq=False)
class Cluster:
    """All nodes, and the record of what happened."""

    size: int
    hardships: Hardships
    seed: int
    board: HealthBoard
    report_every: float = 10.0
    nodes: list[Node] = field(init=False)
    happened: Counter[str] = field(default_factory=Counter)
    finished: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Completions that an engine brought to their end, by rollout and turn."""
    drawn: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """By rollout and turn: the weights and the node that ended it."""

    def __post_init__(self) -> None:
        self.nodes = [Node(number=number) for number in range(self.size)]
        self.draw = random.Random(self.seed)

    async def launch(self, spec: WorkerSpec) -> VirtualWorker:
        """Starts an engine's worker on its node, once the node is there. See `art.process.worker.Launch`."""
        node, loop = self.nodes[int(spec.name.rpartition("-")[2])], asyncio.get_running_loop()
        ready = max(loop.time(), node.back_at, node.reachable_at) + self.draw.uniform(40.0, 90.0)
        if ready - loop.time() > spec.start_deadline:
            await asyncio.sleep(spec.start_deadline)
            raise DeadlineError(f"worker {spec.name!r} was not ready within {spec.start_deadline:g} s")
        await asyncio.sleep(ready - loop.time())
        node.worker = VirtualWorker(self, node)
        self.happened["starts"] += 1
        return node.worker

    async def live(self) -> None:
        """Runs the hardships until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._kill_by_law())
            group.create_task(self._lose_rack())
            for _ in range(self.hardships.cuts):
                group.create_task(self._cut_off())

    async def report(self) -> None:
        """Posts the hosts' batches, the health of each worker that can be reached, until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.report_every)
            now = loop.time()
            up = [one.worker for one in self.nodes if one.worker is not None and one.reachable_at <= now]
            self.board.post({worker.url: worker.health(now) for worker in up if not worker.ended.done()})

    async def _kill_by_law(self) -> None:
        """The deaths of n nodes are one Poisson process with n times the rate of one."""
        while True:
            await asyncio.sleep(self.draw.expovariate(self.size / self.hardships.mean_life))
            self._kill(self.draw.choice(self.nodes), "deaths", 0.0)

    async def _lose_rack(self) -> None:
        if self.hardships.lost_rack:
            await asyncio.sleep(self.hardships.rack_at)
            first = self.draw.randrange(self.size - self.hardships.lost_rack + 1)
            for node in self.nodes[first : first + self.hardships.lost_rack]:
                self._kill(node, "deaths of the rack", self.hardships.rack_repair)

    def _kill(self, node: Node, kind: str, repair: float) -> None:
        node.back_at = max(node.back_at, asyncio.get_running_loop().time() + repair)
        if node.worker is not None and not node.worker.ended.done():
            self.happened[kind] += 1
            node.worker.end()

    async def _cut_off(self) -> None:
        await asyncio.sleep(self.draw.uniform(0.0, self.hardships.cuts_within))
        node, seconds = self.draw.choice(self.nodes), self.draw.uniform(*self.hardships.cut)
        node.reachable_at = asyncio.get_running_loop().time() + seconds
        self.happened["cuts"] += 1
        if node.worker is not None and self.draw.random() < 0.5:
            node.worker.engine.break_off()


class VirtualWorker:
    """See `art.process.worker.RunningWorker`."""

    def __init__(self, cluster: Cluster, node: Node) -> None:
        self.cluster, self.node = cluster, node
        self.url = f"virtual://{node.number}/{cluster.happened['starts']}"
        self.key = "a key of a virtual worker"
        self.disk: WorkerDisk = SharedDisk()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.engine = VirtualEngine(self)

    @property
    def label(self) -> str:
        return f"worker {self.url}"

    async def wait(self) -> object:
        return await asyncio.shield(self.ended)

    def death(self) -> WorkerDiedError:
        return WorkerDiedError(f"{self.label} died")

    def health(self, now: float) -> Mapping[str, Any]:
        return {"running": self.engine.running, "steps": int(now), "error": ""}

    async def probe(self) -> Mapping[str, Any]:
        raise WorkerError("a virtual worker is not asked: its host reports")

    async def dump_stacks(self) -> None:
        await asyncio.sleep(0.5)

    async def stop(self) -> None:
        self.end()

    async def kill(self) -> None:
        self.end()

    def end(self) -> None:
        """What is open breaks."""
        if not self.ended.done():
            self.ended.set_result(None)
            self.engine.break_off()


class VirtualEngine:
    """The client of a worker on a node; see the module."""

    def __init__(self, worker: VirtualWorker) -> None:
        self.worker, self.cluster, self.node = worker, worker.cluster, worker.node
        self.adapters: dict[str, int] = {}
        self.running = 0
        self._waiting: dict[asyncio.Future[None], None] = {}  # in the order in which they began

    def break_off(self) -> None:
        for waiting in list(self._waiting):
            if not waiting.done():
                waiting.set_exception(self.worker.death())

    async def _pass(self, seconds: float) -> None:
        """Time passes at the worker, then its answer travels. Raises as a broken connection does."""
        await self._wait(seconds)
        cut = self.node.reachable_at - asyncio.get_running_loop().time()
        if cut > 0:
            await self._wait(min(cut, STALL_SECONDS))
            if cut > STALL_SECONDS:
                raise WorkerStalledError(f"{self.worker.label} did not answer for {STALL_SECONDS:g} s")

    async def _wait(self, seconds: float) -> None:
        if self.worker.ended.done():
            raise WorkerUnreachableError(f"nobody answers at {self.worker.url}")
        loop = asyncio.get_running_loop()
        waiting = loop.create_future()
        timer = loop.call_later(seconds, _set, waiting)
        self._waiting[waiting] = None
        try:
            await waiting
        finally:
            timer.cancel()
            del self._waiting[waiting]

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        draw = self.cluster.draw
        if request.adapter not in self.adapters:
            await self._pass(0.0)
            raise NotFoundError(f"no adapter {request.adapter!r} on {self.worker.label}", status=404)
        weights, (rollout, turn, *before) = self.adapters[request.adapter], request.prompt_ids
        most = request.sampling.max_tokens
        ids = [sampled_id(weights, rollout, turn, len(before) + place) for place in range(most)]
        deltas = min(3, most) if request.stream else 1
        cuts = [most * at // deltas for at in range(deltas + 1)]
        self.running += 1
        try:
            for at in range(deltas):
                await self._pass(draw.uniform(60.0, 300.0) / deltas)
                news = ids[cuts[at] : cuts[at + 1]]
                last = at + 1 == deltas
                if last:
                    self.cluster.finished[rollout, turn] += 1
                    self.cluster.drawn[rollout, turn] = weights, self.node.number
                yield Delta(
                    token_ids=news, logprobs=[-1.0] * len(news), finish_reason="length" if last else None
                )
        finally:
            self.running -= 1

    async def info(self) -> EngineInfo:
        await self._pass(0.01)
        return EngineInfo(
            base_model="virtual",
            max_context=4096,
            vocab_size=VOCABULARY,
            device="virtual",
            dtype="float32",
            adapters=tuple(self.adapters),
            running=self.running,
            max_waiting=256,
        )

    async def load_adapter(self, name: str, path: Path) -> None:
        slow = self.cluster.draw.random() < self.cluster.hardships.slow_loads
        self.cluster.happened["loads"] += 1
        self.cluster.happened["slow loads"] += slow
        try:
            async with asyncio.timeout(CONTROL_SECONDS):
                await self._pass(900.0 if slow else self.cluster.draw.uniform(0.5, 2.0))
        except TimeoutError as error:
            raise WorkerStalledError(
                f"{self.worker.label} did not load within {CONTROL_SECONDS:g} s"
            ) from error
        self.adapters[name] = int((path / "weights").read_text())

    async def unload_adapter(self, name: str) -> None:
        await self._pass(0.05)
        if self.adapters.pop(name, None) is None:
            raise NotFoundError(f"no adapter {name!r} on {self.worker.label}", status=404)

    async def score(self, adapter: str | None, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        await self._pass(0.2)
        if adapter not in self.adapters:
            raise NotFoundError(f"no adapter {adapter!r} on {self.worker.label}", status=404)
        return [[score_of(self.adapters[adapter])] * (len(row) - 1) for row in rows]

    async def rank(
        self, adapter: str | None, rows: Rows, most: int, alternatives: Alternatives | None = None
    ) -> list[Ranked]:
        raise WorkerError("virtual engines rank nothing")

    async def sleep(self) -> None:
        await self._pass(0.1)

    async def wake(self) -> None:
        await self._pass(0.1)

    async def close(self) -> None:
        """Ends nothing: the worker belongs to its supervisor."""


def _set(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
