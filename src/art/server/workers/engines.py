"""The engines of one base model: a process for each replica, all kept alive, together one `Engine`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art.engine.members import Waits
from art.engine.pool import EnginePool
from art.engine.protocol import Engine
from art.engine.registry import engine_kind, engine_options
from art.engine.remote import Deadlines, RemoteEngine
from art.engine.replicas import Replica
from art.errors import ARTError, WorkerError
from art.server.checkpoints.canary import Canary, CanaryLimits, Rows, Scores
from art.server.control_settings import ControlSettings
from art.server.data_layout import DataLayout
from art.server.models.base_models import BaseModel
from art.server.workers.options import PairOptions
from art.server.workers.supervised import supervise
from art.server.workers.supervisor import Supervisor
from art.server.workers.workers import Worker

_log = logging.getLogger(__name__)

Unload = Callable[[], Awaitable[None]]
Restarted = Callable[[Engine, Sequence[str]], None]
"""Told after each restart of a replica: the engine, and the adapters that it has."""


@dataclass(frozen=True, slots=True, eq=False)
class _Load:
    """One load of an adapter. Its identity tells a late unload that somebody loaded the adapter again."""

    adapter: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Checked:
    """What the trainer computes of some rows under an adapter: a replica that starts again must, too."""

    rows: Rows
    scores: Scores
    limits: CanaryLimits


class Engines:
    """Supervised replicas. One that was started again has its adapters before it gets a request."""

    def __init__(
        self,
        base: BaseModel,
        *,
        options: PairOptions,
        layout: DataLayout,
        settings: ControlSettings,
        restarted: Restarted,
    ) -> None:
        self._settings = settings
        self._restarted = restarted
        self._devices = options.devices
        self._loads: dict[str, _Load] = {}
        self._checked: dict[str, _Checked] = {}
        self._workers: dict[int, Worker] = {}
        waits = Waits(up=settings.start, awake=settings.job)
        self.pool = EnginePool(options.replicas, waits=waits, failed=self._failed)
        self.supervisors = [
            self._supervisor(number, base, options, layout) for number in range(options.replicas)
        ]

    def _supervisor(
        self, number: int, base: BaseModel, options: PairOptions, layout: DataLayout
    ) -> Supervisor:
        config = {
            "base_model": base.source,
            "options": engine_options(options.engine, options.engine_options).model_dump(mode="json"),
            "replica": number,
            "device": options.device(number),
        }
        return supervise(
            f"engine-{base.label}" + (f"-{number}" if options.replicas > 1 else ""),
            engine_kind(options.engine).module,
            config,
            layout=layout,
            settings=self._settings,
            when_up=lambda worker: self._up(number, worker),
            when_given_up=lambda failure: self.pool.members.give_up(number, failure),
        )

    async def start(self) -> None:
        """Start those that do not run. Raises WorkerError, DeadlineError, ConfigurationError."""
        started = [supervisor.start() for supervisor in self.supervisors]
        for failure in await asyncio.gather(*started, return_exceptions=True):
            if isinstance(failure, BaseException):
                raise failure

    async def close(self) -> None:
        """End all."""
        await asyncio.gather(*(supervisor.close() for supervisor in self.supervisors))
        await self.pool.close()

    async def settle(self) -> None:
        """Return once one of them is up. Raises WorkerError (all were given up), DeadlineError."""
        await self.pool.members.someone(awake=False)

    def health(self) -> dict[str, Any]:
        """`up` when all are, `failed` when none will come back; and each of them."""
        states = [supervisor.state for supervisor in self.supervisors]
        whole = (
            states[0] if len(set(states)) == 1 else "restarting" if "restarting" in states else "partly up"
        )
        rows = [{"state": one.state, "restarts": one.restarts} for one in self.supervisors]
        return {"state": whole, "restarts": sum(one.restarts for one in self.supervisors), "replicas": rows}

    async def load(self, adapter: str, path: Path) -> None:
        """Load an adapter on every replica, and again after each restart of one."""
        await self.pool.load_adapter(adapter, path)
        self._loads[adapter] = _Load(adapter)

    async def scores(self, adapter: str | None, rows: Rows) -> dict[int, list[list[float]]]:
        """Logprobs of rows of ids, by the number of each replica that is up."""
        return await self.pool.score_each(adapter, rows)

    def checked(self, adapter: str, rows: Rows, scores: Scores, limits: CanaryLimits) -> None:
        """The trainer's scores: each replica that starts again is held to them."""
        self._checked[adapter] = _Checked(rows=rows, scores=scores, limits=limits)

    def unloader(self, adapter: str) -> Unload:
        """What unloads this load of an adapter: nothing happens when it was loaded again meanwhile."""
        load = self._loads.get(adapter)

        async def unload() -> None:
            if load is None or self._loads.get(adapter) is not load:
                return
            del self._loads[adapter]
            self._checked.pop(adapter, None)
            await self.pool.unload_adapter(adapter)

        return unload

    async def rest(self) -> None:
        """Give memory back to a trainer. New requests wait until `wake`, which must follow in any case."""
        if not self.pool.members.asleep:
            await self.pool.sleep()

    async def wake(self) -> None:
        """Answer requests again. An engine that cannot be woken is started again: this never fails."""
        try:
            await self.pool.wake()
        except ARTError:
            for replica in self.pool.members.up:  # those that died meanwhile are started again awake
                await self._wake_or_restart(replica)

    async def _wake_or_restart(self, replica: Replica) -> None:
        assert replica.engine is not None
        try:
            await replica.engine.wake()
        except ARTError as error:
            _log.error("engine %d did not wake: %s", replica.number, error)
            self._failed(replica.number, WorkerError(f"it did not wake: {error}"))

    def devices(self) -> list[str]:
        """Where the replicas compute, as the machine counts its devices."""
        replicas = self.pool.members.replicas
        told = [replica.info.device if replica.info is not None else "" for replica in replicas]
        return list(self._devices or told)

    def dtypes(self) -> list[str]:
        """What the replicas compute in."""
        infos = [replica.info for replica in self.pool.members.replicas]
        return [info.dtype for info in infos if info is not None]

    async def _up(self, number: int, worker: Worker) -> None:
        again = self.pool.members.replicas[number].starts > 0
        deadlines = Deadlines(control=self._settings.call, drain=self._settings.drain)
        engine = RemoteEngine(worker.url, worker.key, deadlines)
        self._workers[number] = worker
        try:
            await self.pool.members.join(number, engine, self._verify)
        except BaseException:
            await engine.close()
            raise
        if again:
            self._restarted(self.pool, list(self.pool.members.adapters))

    async def _verify(self, engine: Engine, adapter: str) -> None:
        known = self._checked.get(adapter)
        if known is not None:
            scores = await engine.score(adapter, known.rows)
            Canary(rows=known.rows).check(adapter, {0: scores}, known.scores, known.limits)

    def _failed(self, number: int, error: WorkerError) -> None:
        self.supervisors[number].report(self._workers.get(number), error)
