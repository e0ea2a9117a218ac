"""The engines and the trainer of one base model, kept alive together and shared by its models."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from art.engine.protocol import Engine
from art.errors import ParityError
from art.server.checkpoints.canary import CanaryLimits, Rows, Scores
from art.server.checkpoints.checkpoints import Checkpoints
from art.server.checkpoints.parity import Parity, judge, measure
from art.server.control_settings import ControlSettings
from art.server.counts import WorkerCounts
from art.server.data_layout import DataLayout
from art.server.models.base_models import BaseModel
from art.server.models.models import Registration
from art.server.workers.engines import Engines, Restarted, Unload
from art.server.workers.options import PairOptions, shared_gpu
from art.server.workers.trainer_client import OpenModel
from art.server.workers.trainers import Trainers
from art.wire.training import LoraSpec, ProbeReply, ProbeRequest


class WorkerPair:
    """One side samples (`Engines`), the other trains (`Trainers`)."""

    def __init__(
        self,
        base: BaseModel,
        *,
        options: PairOptions,
        layout: DataLayout,
        settings: ControlSettings,
        restarted: Restarted,
    ) -> None:
        self.base = base
        self._settings = settings
        self._layout = layout
        self._parity: list[tuple[LoraSpec | None, Parity]] = []
        self.engines = Engines(base, options=options, layout=layout, settings=settings, restarted=restarted)
        self.trainers = Trainers(base, options=options, layout=layout, settings=settings)
        self.training = asyncio.Lock()
        """Held by the one job that uses the trainer."""

    @property
    def engine(self) -> Engine:
        """All replicas as one engine, which outlives each of them."""
        return self.engines.pool

    async def start(self) -> None:
        """Start what does not run. When the first start fails, no worker is left running.

        Raises WorkerError, DeadlineError, ConfigurationError.
        """
        first = self.trainers.supervisor.state == "new"
        results = await asyncio.gather(
            self.engines.start(), self.trainers.supervisor.start(), return_exceptions=True
        )
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            if first:
                await self.close()
            raise failures[0]

    async def close(self) -> None:
        """End all workers. What they held is forgotten."""
        await asyncio.gather(self.engines.close(), self.trainers.close())

    async def settle(self) -> None:
        """Return once engine and trainer are up. Raises WorkerError (given up), DeadlineError."""
        await self.engines.settle()
        await self.trainers.client()

    def health(self) -> dict[str, Any]:
        """The state of each worker (`up`, `restarting`, `failed` or `new`), and how far they are apart."""
        trainer = self.trainers.supervisor
        return {
            "engine": self.engines.health(),
            "trainer": {"state": trainer.state, "restarts": trainer.restarts},
            "parity": [parity.row() for _, parity in self._parity],
        }

    def counts(self) -> list[WorkerCounts]:
        """Each worker, for those who draw curves of it."""
        watched = [("engine", number, one) for number, one in enumerate(self.engines.supervisors)]
        return [
            WorkerCounts(
                base_model=self.base.name,
                role=role,
                replica=number,
                up=one.state == "up",
                restarts=one.restarts,
                health=one.health,
            )
            for role, number, one in [*watched, ("trainer", 0, self.trainers.supervisor)]
        ]

    async def load(self, adapter: str, path: Path) -> None:
        """See `Engines.load`."""
        await self.engines.load(adapter, path)

    async def engine_scores(self, adapter: str | None, rows: Rows) -> dict[int, list[list[float]]]:
        """See `Engines.scores`."""
        return await self.engines.scores(adapter, rows)

    def checked(self, adapter: str, rows: Rows, scores: Scores, limits: CanaryLimits) -> None:
        """See `Engines.checked`."""
        self.engines.checked(adapter, rows, scores, limits)

    def unloader(self, adapter: str) -> Unload:
        """See `Engines.unloader`."""
        return self.engines.unloader(adapter)

    async def dtypes(self) -> list[str]:
        """What engines and trainer compute in."""
        return [*self.engines.dtypes(), str((await self.trainers.told()).get("dtype"))]

    async def rest(self) -> None:
        """Before a step is trained: the engines sleep where `sleep_engine` says so."""
        how = self._settings.sleep_engine
        if how == "never":
            return
        if how == "always" or shared_gpu(
            self.engines.devices(), str((await self.trainers.told()).get("device"))
        ):
            await self.engines.rest()

    async def wake(self) -> None:
        """The engines answer again, if they slept. Never fails."""
        await self.engines.wake()

    async def drop(self, adapter: str) -> None:
        """Unload an adapter now."""
        await self.engines.unloader(adapter)()

    async def probe(self, lora: LoraSpec | None, path: Path, rows: Rows) -> ProbeReply:
        """The trainer's scores without and with a probing LoRA, which it writes to `path`."""
        request = ProbeRequest(lora=lora, path=str(path), rows=[list(row) for row in rows])
        return await (await self.trainers.client()).probe(request)

    async def require_parity(self, lora: LoraSpec | None, greeting: Sequence[int]) -> None:
        """Once for each shape of a LoRA: engine and trainer must compute the same with it.

        Raises ParityError, WorkerError, ConfigurationError (unknown targets).
        """
        if any(seen == lora for seen, _ in self._parity):
            return
        info = await self.engine.info()
        parity = await measure(
            self,
            lora,
            greeting,
            vocab_size=info.vocab_size,
            max_context=info.max_context,
            folder=self._layout.probe_folder(),
        )
        self._parity.append((lora, parity))
        try:
            judge(parity, self.base.name, refuse=self._settings.parity == "refuse")
        except ParityError:
            self._parity.pop()
            raise

    async def open(self, model: Registration, checkpoints: Checkpoints) -> OpenModel:
        """See `Trainers.open`."""
        return await self.trainers.open(model, checkpoints)

    def invalidate(self, model: Registration) -> None:
        """See `Trainers.invalidate`."""
        self.trainers.invalidate(model)
