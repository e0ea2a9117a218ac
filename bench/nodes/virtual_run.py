"""A run of many rollouts on many virtual nodes, with the real pool, supervisors, catalog and promotion.

Real: `EnginePool`, `EngineWorkers` (joining, catching up, canary), `Supervisor`, `HealthBoard`, `Catalog`,
`Checkpoints`, `ServedModel.promote`. Virtual: the clock, the nodes and their engines, the trainer.

Each request asks for the newest step, as the gateway does, and checks the ids that come back against those of
the step that it is recorded with.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from art.engine.base_models import BaseModel
from art.engine.protocol import GenerateRequest, Sampling
from art.errors import ARTError
from art.rendering.chat_renderer import ChatRenderer
from art.server.catalog import Catalog
from art.server.checkpoints.canary import Canary
from art.server.checkpoints.checkpoints import Checkpoints, JobNote
from art.server.checkpoints.registered_models import Registration
from art.server.data_folder import DataLayout
from art.server.promotion.promote import ServedModel, ignore_progress
from art.server.settings import ControlSettings
from art.server.workers.base_model import BaseModelWorkers
from art.server.workers.health_board import HealthBoard
from art.server.workers.supervisor import WorkerOptions
from art.server.workers.trainer_worker import TrainedModel
from art.wire.jobs import TrainResultInfo
from art.wire.training import LoraSpec
from bench.nodes.virtual_clock import run_virtually
from bench.nodes.virtual_nodes import Cluster, Hardships, VirtualWorker, sampled_id, score_of

MODEL = Registration(project="p", name="m", base_model="virtual", lora=LoraSpec())
ROWS = [[1, 2, 3]]
TOKENS = 12
LOOK_SECONDS = 30.0
"""Between two looks at the loads."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run. Times in seconds."""

    nodes: int
    rollouts: int
    at_once: int
    """Rollouts at a time."""
    hardships: Hardships
    promote_every: float = 120.0
    seed: int = 0


@dataclass(kw_only=True)
class Outcome:
    """What a run was found to be."""

    requests: int = 0
    failed: list[str] = field(default_factory=list)
    """Requests that no engine answered."""
    wrong: list[str] = field(default_factory=list)
    """Completions with other ids than those of the step that they are recorded with."""
    doubled: int = 0
    """Completions that more than one engine brought to its end."""
    uneven: list[str] = field(default_factory=list)
    """Promotions after which a serving replica lacked the adapter, or had other weights under its name."""
    promotions: int = 0
    promotion_failures: list[str] = field(default_factory=list)
    slowest_promotion: float = 0.0
    restarts: int = 0
    given_up: int = 0
    balance: list[float] = field(default_factory=list)
    """At each look while all rollouts are at work: the most open requests of a replica over the mean."""
    turns_after_another: int = 0
    moved: int = 0
    """Of these: not on the replica of the turn before, although it was up."""
    hours: float = 0.0
    cpu: float = 0.0
    """Seconds, all of it: virtual engines and rollouts, too."""
    happened: Counter[str] = field(default_factory=Counter)
    steps: Counter[int] = field(default_factory=Counter)
    """Completions by the step that drew them."""


class VirtualTrained(TrainedModel):
    """What a trainer holds: weights that are the number of the step."""

    def __init__(self, step: int) -> None:
        self.model, self.step, self.weights = MODEL.key, step, step

    async def score(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[score_of(self.weights)] * (len(row) - 1) for row in rows]

    async def save(self, path: Path) -> None:
        path.mkdir()  # noqa: ASYNC240
        state = json.dumps({"step": self.weights}).encode()
        digest = hashlib.sha256(state).hexdigest()
        (path / "weights").write_text(str(self.weights))
        (path / "trainer_state.json").write_bytes(state)
        (path / "manifest.json").write_text(json.dumps({"files": {"trainer_state.json": {"sha256": digest}}}))


class EnginesAlone(BaseModelWorkers):
    """Without a trainer's process."""

    async def dtypes(self) -> list[str]:
        return self.engines.dtypes()


class VirtualRun:
    """One run and its parts."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.outcome = plan, Outcome()
        board = HealthBoard()
        self.cluster = Cluster(plan.nodes, plan.hardships, plan.seed, board)
        settings = ControlSettings(health_interval=10.0, drain=3600.0)
        self.catalog = Catalog()
        self.workers = EnginesAlone(
            BaseModel(name="virtual", source="virtual"),
            options=WorkerOptions(
                engine_options={},
                trainer_options={},
                replicas=plan.nodes,
                launch=self.cluster.launch,
                board=board,
                connect=lambda worker, deadlines, transfer: engine_of(worker),
            ),
            layout=DataLayout(folder),
            settings=settings,
            restarted=lambda engine, adapters: self.catalog.replace_engine(
                "virtual", engine, adapters=adapters
            ),
        )
        self.pool = self.workers.engine
        self.catalog.add_base("virtual", self.pool, ChatRenderer.__new__(ChatRenderer), max_context=4096)
        self.served = ServedModel(
            MODEL,
            workers=self.workers,
            catalog=self.catalog,
            checkpoints=Checkpoints(folder / "checkpoints"),
            settings=settings,
        )
        self.numbers = iter(range(plan.rollouts))
        self.draw = random.Random(plan.seed + 1)
        self.rolling = 0
        """Rollouts at work."""

    async def run(self) -> Outcome:
        loop, outcome = asyncio.get_running_loop(), self.outcome
        reports = asyncio.create_task(self.cluster.report())
        await self.workers.engines.start()
        await self._promote(0)
        begin, cpu = loop.time(), time.process_time()
        others = (self.cluster.live(), self._train(), self._look())
        beside = [reports, *(asyncio.create_task(one) for one in others)]
        async with asyncio.TaskGroup() as group:
            for _ in range(self.plan.at_once):
                group.create_task(self._roll_out())
        outcome.cpu, outcome.hours = time.process_time() - cpu, (loop.time() - begin) / 3600
        for task in beside:
            task.cancel()
        for result in await asyncio.gather(*beside, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        outcome.doubled = sum(count - 1 for count in self.cluster.finished.values())
        supervisors = self.workers.engines.supervisors
        outcome.restarts = sum(one.restarts for one in supervisors)
        outcome.given_up = sum(one.state == "failed" for one in supervisors)
        outcome.happened = self.cluster.happened
        await self.served.close()
        await self.workers.engines.close()
        return outcome

    async def _train(self) -> None:
        step = 0
        while True:
            await asyncio.sleep(self.plan.promote_every)
            step += 1
            await self._promote(step)

    async def _promote(self, step: int) -> None:
        loop, outcome = asyncio.get_running_loop(), self.outcome
        begin = loop.time()
        note = JobNote(job_id=f"job-{step}", result=TrainResultInfo(step=step, metrics={}, sheet={}))
        try:
            done = await self.served.promote(
                VirtualTrained(step), step, Canary(rows=ROWS), note, ignore_progress
            )
        except ARTError as error:
            outcome.promotion_failures.append(f"step {step}: {error}")
            return
        outcome.promotions += 1
        outcome.slowest_promotion = max(outcome.slowest_promotion, loop.time() - begin)
        for replica in self.pool.running_replicas:
            if (found := replica.engine.adapters.get(done.adapter)) != step:  # type: ignore[union-attr]
                outcome.uneven.append(f"step {step}, replica {replica.number}: {found}")

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            loads = [replica.open for replica in self.pool.running_replicas]
            mean = sum(loads) / len(loads)
            if self.rolling == self.plan.at_once:
                self.outcome.balance.append(max(loads) / mean)

    async def _roll_out(self) -> None:
        """One rollout after the other, until all are made."""
        self.rolling += 1
        for rollout in self.numbers:
            before: int | None = None
            await asyncio.sleep(self.draw.uniform(0.0, 60.0))
            for turn in range(self.draw.randint(2, 6)):
                try:
                    here = await self._ask(rollout, turn)
                except ARTError as error:
                    self.outcome.failed.append(f"{rollout}, {turn}: {error!r}")
                    break
                if before is not None and here is not None:
                    self.outcome.turns_after_another += 1
                    self.outcome.moved += here != before and self.pool.replicas[before].up
                before = here
                await asyncio.sleep(self.draw.uniform(5.0, 60.0))
        self.rolling -= 1

    async def _ask(self, rollout: int, turn: int) -> int | None:
        """A request. Returns the number of the replica that ended it."""
        outcome = self.outcome
        outcome.requests += 1
        target = await self.catalog.resolve("m")
        request = GenerateRequest(
            request_id=f"{rollout}/{turn}",
            adapter=target.adapter,
            prompt_ids=[rollout, turn],
            sampling=Sampling(max_tokens=TOKENS, seed=rollout if rollout % 3 == 0 else None),
            stream=turn % 2 == 0,
            affinity=str(rollout),
        )
        ids: list[int] = []
        finished = 0
        with self.catalog.using(target):
            async for delta in target.engine.generate(request):
                ids += delta.token_ids
                finished += delta.finish_reason is not None
        assert target.step is not None
        weights, node = self.cluster.drawn.get((rollout, turn), (None, None))
        expected = [sampled_id(target.step, rollout, turn, place) for place in range(TOKENS)]
        if ids != expected or finished != 1 or weights != target.step:
            outcome.wrong.append(f"{rollout}, {turn}: step {target.step}, drawn by {weights}, {ids}")
        outcome.steps[target.step] += 1
        return node


def engine_of(worker: object) -> object:
    assert isinstance(worker, VirtualWorker)
    return worker.engine


def simulate(plan: Plan, folder: Path) -> Outcome:
    """Run a plan in virtual time. folder: where its checkpoints are written."""

    async def run() -> Outcome:
        return await VirtualRun(plan, folder).run()

    return run_virtually(run())
