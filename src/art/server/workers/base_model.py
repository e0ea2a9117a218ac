"""The workers of each base model: replicas of its engine and its trainer, kept alive together, shared by its
models.

`EngineWorkers` are one worker or server for each replica, together one `Engine`; `BaseModelWorkers` are these
and the trainer; `ServerWorkers` start them on first use, and serve the engine from then on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from art.engine.base_models import BaseModel, with_folder
from art.engine.protocol import Deadlines, Engine, EngineServer, ServerOrder
from art.engine.registry import check_bits, engine_kind, engine_options
from art.engine.replicas.pool import EnginePool, ReplicaWaits
from art.engine.replicas.ring import Replica
from art.errors import ARTError, ParityError, WorkerError, require_extra
from art.process.imports import import_lock
from art.process.worker import RunningWorker, WorkerSpec, module_command
from art.rendering.chat_renderer import ChatRenderer
from art.server.catalog import Catalog
from art.server.checkpoints.canary import Canary, CanaryLimits
from art.server.checkpoints.parity import Parity, judge_parity, measure_parity
from art.server.checkpoints.score_difference import Rows, Scores
from art.server.counts import WorkerCounts
from art.server.data_folder import DataLayout
from art.server.settings import ControlSettings
from art.server.workers.health_board import ProbingBoard
from art.server.workers.shared_turn import SharedTurn
from art.server.workers.supervisor import Supervisor, Watch, WorkerOptions, shared_gpu, supervise
from art.server.workers.trainer_worker import TrainerWorker
from art.wire.training import LoraSpec, ProbeReply, ProbeRequest

_log = logging.getLogger(__name__)

ASKED_BY_SUPERVISORS = 32
"""Engine workers that their supervisors ask for their health; more are asked by a thread (`ProbingBoard`)."""

EngineSupervisor = Supervisor[RunningWorker] | Supervisor[EngineServer]
Unload = Callable[[], Awaitable[None]]
Restarted = Callable[[Engine, Sequence[str]], None]
"""Is called after each restart of a replica with the engine and its adapters."""


@dataclass(frozen=True, slots=True, eq=False)
class _Load:
    """One load of an adapter. Its identity tells a late unload that somebody loaded the adapter again."""

    adapter: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Checked:
    """The trainer's scores of some rows under an adapter, which a restarted replica must reproduce."""

    rows: Rows
    scores: Scores
    limits: CanaryLimits


class EngineWorkers:
    """Supervised replicas. One that was started again has its adapters before it gets a request."""

    def __init__(
        self,
        base: BaseModel,
        *,
        options: WorkerOptions,
        layout: DataLayout,
        settings: ControlSettings,
        restarted: Restarted,
    ) -> None:
        self._settings = settings
        self._restarted = restarted
        self._devices = options.devices
        self._loads: dict[str, _Load] = {}
        self._checked: dict[str, _Checked] = {}
        self._workers: dict[int, RunningWorker | EngineServer] = {}
        waits = ReplicaWaits(up=settings.start, awake=settings.job)
        self.pool = EnginePool(options.replicas, waits=waits, failed=self._failed)
        # The hosts of a cluster tell health by themselves: a worker there knows the newest.
        many_here = options.replicas > ASKED_BY_SUPERVISORS and not options.in_cluster
        self._board = options.board or (ProbingBoard() if many_here else None)
        self.supervisors = [
            self._supervisor(number, base, options, layout) for number in range(options.replicas)
        ]

    def _supervisor(
        self, number: int, base: BaseModel, options: WorkerOptions, layout: DataLayout
    ) -> EngineSupervisor:
        """Returns the supervisor of one of ART's workers, or of somebody else's engine server."""
        name = f"engine-{base.label}" + (f"-{number}" if options.replicas > 1 else "")
        kind, checked = engine_kind(options.engine), engine_options(options.engine, options.engine_options)
        check_bits(options.engine, base.bits)
        if base.bits != 16:
            require_extra("quantized", f"the base model {base.name!r}")
        deadlines = Deadlines(control=self._settings.call, drain=self._settings.drain)

        def given_up(failure: ARTError) -> None:
            self.pool.give_up(number, failure)

        attached = bool(options.engine_options.get("urls"))
        if (start_server := kind.start_server) is not None and (attached or not options.in_cluster):

            async def start(spec: WorkerSpec) -> EngineServer:
                order = ServerOrder(
                    name=name,
                    base_model=base.source,
                    options=checked,
                    log_path=spec.log_path,
                    replica=number,
                    copies=options.replicas,
                    device=options.device(number),
                    start_deadline=spec.start_deadline,
                    deadlines=deadlines,
                )
                return await start_server(order)

            return supervise(
                name,
                start,
                layout=layout,
                settings=self._settings,
                when_up=lambda server: self._join_pool(number, server, server.engine),
                when_given_up=given_up,
            )
        config = {
            "base_model": base.source,
            "bits": base.bits,
            "options": checked.model_dump(mode="json"),
            "device": options.device(number),
        }
        return supervise(
            name,
            options.launch,
            command=module_command(kind.module),
            config=config,
            gpus=1 if kind.gpus_together is None else kind.gpus_together(checked),
            copies=1 if options.in_cluster else options.replicas,
            layout=layout,
            settings=self._settings,
            when_up=lambda worker: self._join_pool(
                number, worker, options.connect(worker, deadlines, options.transfer)
            ),
            when_given_up=given_up,
            watch=self._board_watch(),
        )

    def _board_watch(self) -> Watch[RunningWorker] | None:
        """Returns how the board watches a worker; None without a board."""
        if self._board is None:
            return None
        interval, deadline = self._settings.health_interval, self._settings.health_deadline
        return partial(self._board.watch, interval=interval, deadline=deadline)

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

    async def wait_until_up(self) -> None:
        """Return once one of them is up. Raises WorkerError (all were given up), DeadlineError."""
        await self.pool.wait_until_up(awake=False)

    async def leave_node(self, node: str) -> list[str]:
        """Start those of a node elsewhere, one after the other; requests go on. Returns their names.

        Raises WorkerError, DeadlineError.
        """
        there = [one for one in self.supervisors if one.current is not None and one.current.node == node]
        for supervisor in there:
            await supervisor.move()
        return [one.spec.name for one in there]

    def health(self) -> dict[str, Any]:
        """`up` when all are, `failed` when none will come back; and each of them."""
        states = [supervisor.state for supervisor in self.supervisors]
        state = (
            states[0] if len(set(states)) == 1 else "restarting" if "restarting" in states else "partly up"
        )
        rows = [{"state": one.state, "restarts": one.restarts} for one in self.supervisors]
        return {"state": state, "restarts": sum(one.restarts for one in self.supervisors), "replicas": rows}

    async def load(self, adapter: str, path: Path) -> None:
        """Load an adapter on every replica, and again after each restart of one."""
        try:
            await self.pool.load_adapter(adapter, path)
        except BaseException:
            if adapter not in self._loads:
                self._checked.pop(adapter, None)
            raise
        self._loads[adapter] = _Load(adapter)

    def checked(self, adapter: str, rows: Rows, scores: Scores, limits: CanaryLimits) -> None:
        """The trainer's scores: each replica that starts again is held to them."""
        self._checked[adapter] = _Checked(rows=rows, scores=scores, limits=limits)

    def checked_alike(self, adapter: str, other: str) -> None:
        """Holds each replica that starts again to the other adapter's scores, whose weights are the same."""
        if (known := self._checked.get(other)) is not None:
            self._checked[adapter] = known

    def unloader(self, adapter: str) -> Unload:
        """Returns a function that unloads this load of an adapter: it does nothing if the adapter was loaded
        again meanwhile.
        """
        load = self._loads.get(adapter)

        async def unload() -> None:
            if load is None or self._loads.get(adapter) is not load:
                return
            del self._loads[adapter]
            self._checked.pop(adapter, None)
            await self.pool.unload_adapter(adapter)

        return unload

    def addresses(self) -> list[tuple[int, str, str]]:
        """Returns number, URL and key of ART's own workers that answer now; none while they sleep."""
        running = [] if self.pool.asleep else self.pool.running_replicas
        found = [(one.number, self._workers.get(one.number)) for one in running]
        return [
            (number, worker.url, worker.key)
            for number, worker in found
            if worker is not None and not hasattr(worker, "engine")
        ]

    async def rest(self) -> None:
        """Frees memory for a trainer. New requests wait until `wake`, which must follow in any case."""
        if not self.pool.asleep:
            await self.pool.sleep()

    async def wake(self) -> None:
        """Answer requests again. An engine that cannot be woken is started again: this never fails."""
        try:
            await self.pool.wake()
        except ARTError:
            for replica in self.pool.running_replicas:  # those that died meanwhile are started again awake
                await self._wake_or_restart(replica)

    async def _wake_or_restart(self, replica: Replica) -> None:
        assert replica.engine is not None
        try:
            await replica.engine.wake()
        except ARTError as error:
            _log.error("engine %d did not wake: %s", replica.number, error)
            self._failed(replica.number, WorkerError(f"it did not wake: {error}"))

    def devices(self) -> list[str]:
        """Returns the devices of the replicas, as the machine counts them."""
        replicas = self.pool.replicas
        reported = [replica.info.device if replica.info is not None else "" for replica in replicas]
        return list(self._devices or reported)

    def dtypes(self) -> list[str]:
        """Returns the dtypes of the replicas."""
        infos = [replica.info for replica in self.pool.replicas]
        return [info.dtype for info in infos if info is not None]

    async def _join_pool(self, number: int, worker: RunningWorker | EngineServer, engine: Engine) -> None:
        again = self.pool.replicas[number].starts > 0
        self._workers[number] = worker
        try:
            await self.pool.join(number, engine, self._verify)
        except BaseException:
            await engine.close()
            raise
        if again:
            self._restarted(self.pool, list(self.pool.adapters))

    async def _verify(self, engine: Engine, adapter: str) -> None:
        known = self._checked.get(adapter)
        if known is not None:
            scores = await engine.score(adapter, known.rows)
            Canary(rows=known.rows).check(adapter, {0: scores}, known.scores, known.limits)

    def _failed(self, number: int, error: WorkerError) -> None:
        self.supervisors[number].report(self._workers.get(number), error)


class BaseModelWorkers:
    """One side samples (`EngineWorkers`), the other trains (`TrainerWorker`)."""

    def __init__(
        self,
        base: BaseModel,
        *,
        options: WorkerOptions,
        layout: DataLayout,
        settings: ControlSettings,
        restarted: Restarted,
    ) -> None:
        self.base = base
        self._settings = settings
        self._layout = layout
        self._parity: list[tuple[LoraSpec | None, Parity]] = []
        self.engines = EngineWorkers(
            base, options=options, layout=layout, settings=settings, restarted=restarted
        )
        self.trainers = TrainerWorker(base, options=options, layout=layout, settings=settings)
        self.training = asyncio.Lock()
        """Held by the one job that uses the trainer."""
        self.shared_turn = SharedTurn(self._turn)

    @property
    def engine(self) -> EnginePool:
        """All replicas as one engine, which outlives each of them."""
        return self.engines.pool

    async def start(self) -> None:
        """Start what does not run. When the first start fails, no worker is left running.

        Raises WorkerError, DeadlineError, ConfigurationError.
        """
        first = self.trainers.supervisor.state == "new"
        try:
            results = await asyncio.gather(
                self.engines.start(), self.trainers.supervisor.start(), return_exceptions=True
            )
        except asyncio.CancelledError:
            if first:
                await self.close()
            raise
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            if first:
                await self.close()
            raise failures[0]

    async def close(self) -> None:
        """End all workers. What they held is forgotten."""
        await asyncio.gather(self.engines.close(), self.trainers.close())

    async def leave_node(self, node: str) -> list[str]:
        """Start the workers of a node elsewhere, the trainer between two steps. Returns their names.

        Raises WorkerError, DeadlineError.
        """
        moved = await self.engines.leave_node(node)
        trainer = self.trainers.supervisor
        async with asyncio.timeout(self._settings.job), self.training:
            worker = trainer.current
            if worker is not None and node in getattr(worker, "nodes", [worker.node]):  # those of a gang
                await trainer.move()
                moved.append(trainer.spec.name)
        return moved

    async def wait_until_up(self) -> None:
        """Return once engine and trainer are up. Raises WorkerError (given up), DeadlineError."""
        await self.engines.wait_until_up()
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

    async def dtypes(self) -> list[str]:
        """Returns the dtypes of engines and trainer."""
        own = [*self.engines.dtypes(), str((await self.trainers.worker_info()).get("dtype"))]
        # In 8 bits activations are rounded, too: where they lie between two steps, the last digit decides.
        return [*own, "int8"] if self.base.bits == 8 else own

    async def rest(self) -> None:
        """Puts the engines to sleep before a step is trained, if `sleep_engine` requires it."""
        how = self._settings.sleep_engine
        if how == "never":
            return
        info, engines = await self.trainers.worker_info(), self.engines.devices()
        trained_on = info.get("devices") or [info.get("device")]
        if how == "always" or any(shared_gpu(engines, str(device)) for device in trained_on):
            await self.engines.rest()

    async def wake(self) -> None:
        """The engines answer again, if they slept. Never fails."""
        await self.engines.wake()

    @asynccontextmanager
    async def resting(self) -> AsyncIterator[None]:
        """Has the engines sleep inside the block, if `sleep_engine` requires it."""
        try:
            await self.rest()
            yield
        finally:
            await self.wake()

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        async with self.training, self.resting():
            yield

    async def probe(self, lora: LoraSpec | None, path: Path, rows: Rows) -> ProbeReply:
        """The trainer's scores without and with a probing LoRA, which it writes to `path`."""
        request = ProbeRequest(lora=lora, path=str(path), rows=[list(row) for row in rows])
        return await (await self.trainers.client()).probe(request)

    async def require_parity(
        self, lora: LoraSpec | None, greeting: Sequence[int], begin_phase: Callable[[str], None]
    ) -> None:
        """Checks once for each shape of a LoRA that engine and trainer compute the same with it.

        Raises ParityError, WorkerError, ConfigurationError (unknown targets).
        """
        if any(seen == lora for seen, _ in self._parity):
            return
        begin_phase("checking that engine and trainer agree")
        info = await self.engine.info()
        parity = await measure_parity(
            self,
            lora,
            greeting,
            vocab_size=info.vocab_size,
            max_context=info.max_context,
            folder=self._layout.probe_folder(),
        )
        self._parity.append((lora, parity))
        try:
            judge_parity(parity, self.base.name, refuse=self._settings.parity == "refuse")
        except ParityError:
            self._parity.pop()
            raise


class ServerWorkers:
    """All workers of the server."""

    def __init__(
        self, catalog: Catalog, *, options: WorkerOptions, layout: DataLayout, settings: ControlSettings
    ) -> None:
        self._catalog = catalog
        self._options = options
        self._layout = layout
        self._settings = settings
        self._by_base: dict[str, BaseModelWorkers] = {}

    async def ensure_started(self, base: BaseModel, begin_phase: Callable[[str], None]) -> BaseModelWorkers:
        """The workers of a base model, up. Raises WorkerError, DeadlineError, ConfigurationError, DiskError.

        The caller keeps others from opening the same base.
        """
        workers = self._by_base.get(base.name)
        if workers is not None:
            await workers.start()
            return workers
        base = await with_folder(base, begin_phase)

        def restarted(engine: Engine, adapters: Sequence[str]) -> None:
            if self._catalog.has_base(base.name):
                self._catalog.replace_engine(base.name, engine, adapters=adapters)

        workers = BaseModelWorkers(
            base, options=self._options, layout=self._layout, settings=self._settings, restarted=restarted
        )
        begin_phase(f"loading the tokenizer of {base.name}")
        begin_phase(f"loading {base.name} into engine and trainer")
        renderer = await self._load_beside(workers.start(), base)
        info = await workers.engine.info()
        self._catalog.add_base(
            base.name, workers.engine, renderer, max_context=info.max_context, aliases=base.aliases
        )
        self._by_base[base.name] = workers
        return workers

    @staticmethod
    async def _load_beside(start: Coroutine[Any, Any, None], base: BaseModel) -> ChatRenderer:
        """The tokenizer of a base model, loaded while its workers start. When it cannot be loaded, their
        start is broken off.
        """
        starting = asyncio.create_task(start)
        try:
            renderer = await asyncio.to_thread(_renderer, base)
        except BaseException:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            raise
        await starting
        return renderer

    def health(self) -> dict[str, Any]:
        """The state of the workers of each base model."""
        return {name: workers.health() for name, workers in self._by_base.items()}

    def counts(self) -> list[WorkerCounts]:
        """Each worker."""
        return [row for workers in self._by_base.values() for row in workers.counts()]

    def running_engines(self) -> dict[str, tuple[int, list[tuple[int, str, str]]]]:
        """Returns for each base model the number of its replicas, and the addresses of those that answer."""
        return {
            name: (len(workers.engine.replicas), workers.engines.addresses())
            for name, workers in self._by_base.items()
        }

    def requests_on_hold(self) -> dict[str, int]:
        """Requests of each base model that wait until an engine of it is up and awake."""
        return {name: workers.engine.requests_on_hold for name, workers in self._by_base.items()}

    async def leave_node(self, node: str) -> list[str]:
        """Start the workers of a node elsewhere. Returns their names. Raises WorkerError, DeadlineError."""
        moved = await asyncio.gather(*(workers.leave_node(node) for workers in self._by_base.values()))
        return [name for names in moved for name in names]

    async def close(self) -> None:
        """End all workers."""
        await asyncio.gather(*(workers.close() for workers in self._by_base.values()))


def _renderer(base: BaseModel) -> ChatRenderer:
    with import_lock:
        from art.rendering.registry import create_chat_renderer

    return create_chat_renderer(base.source, name=base.name)
