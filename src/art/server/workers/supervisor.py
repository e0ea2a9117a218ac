"""The supervisor keeps one worker, or one server of somebody else's engine, alive: notices its death or
stall, keeps the stacks, starts it again, and gives up in the end.

A few workers are asked for their health by their supervisors; many are watched by a `HealthBoard`.
`WorkerOptions` say which engine and which trainer are started; `supervise` applies the server's deadlines
and folders.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from art.engine.protocol import Deadlines, Engine
from art.engine.remote import RemoteEngine
from art.errors import (
    ARTError,
    ConfigurationError,
    DeadlineError,
    WorkerDiedError,
    WorkerError,
    WorkerStalledError,
)
from art.process.worker import Launch, RunningWorker, Supervised, Worker, WorkerSpec
from art.server.data_folder import DataLayout
from art.server.settings import ControlSettings
from art.server.workers.gang import CAUSE_S, GangLaunch, TrainerRanks
from art.server.workers.health_board import Health, HealthBoard, StallWatch

_log = logging.getLogger(__name__)

DEATH_S = CAUSE_S + 1.0
"""Seconds in which the end of a process, or a gang's cause, is heard of after its connection broke."""

W = TypeVar("W", bound=Supervised)
Start = Callable[[WorkerSpec], Awaitable[W]]
WhenUp = Callable[[W], Awaitable[None]]
"""Makes a fresh worker useful (adapters loaded, clients replaced) before anybody else gets it."""
WhenGivenUp = Callable[[ARTError], None]
Watch = Callable[
    [W, Callable[[Health], None], Callable[[WorkerError], None]], contextlib.AbstractContextManager[None]
]
"""Watches a worker until the block ends: tells of its health, and of trouble (`HealthBoard.watching`)."""


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """The policy of restarts: at most `limit` within `window` seconds; waits double from `backoff` to
    `backoff_limit` seconds.
    """

    limit: int = 5
    window: float = 600.0
    backoff: float = 0.2
    backoff_limit: float = 10.0


class Supervisor(Generic[W]):
    """Owns a worker's life. `when_up` runs after each start, the first one included."""

    def __init__(
        self,
        spec: WorkerSpec,
        start: Start[W],
        *,
        when_up: WhenUp[W],
        when_given_up: WhenGivenUp = lambda failure: None,
        policy: RestartPolicy | None = None,
        watch: Watch[W] | None = None,
    ) -> None:
        """watch: tells how the worker is; None: it is asked every `health_interval`."""
        self.spec = spec
        self.restarts = 0
        self.health: Mapping[str, Any] = {}
        """What the worker's newest health check said."""
        self._start = start
        self._when_up = when_up
        self._when_given_up = when_given_up
        self._policy = policy or RestartPolicy()
        self._watch_health = watch
        self._recent: deque[float] = deque()
        self._worker: W | None = None
        self._failure: ARTError | None = None
        self._up = asyncio.Event()
        self._suspicion: asyncio.Future[WorkerError] = asyncio.get_running_loop().create_future()
        self._watch: asyncio.Task[None] | None = None

    @property
    def current(self) -> W | None:
        """The worker, or None while there is none that answers."""
        return self._worker if self._up.is_set() else None

    @property
    def state(self) -> str:
        """`new`, `up`, `restarting` or `failed`."""
        if self._watch is None:
            return "new"
        if self._failure is not None:
            return "failed"
        return "up" if self._up.is_set() else "restarting"

    async def start(self) -> None:
        """Start the worker, also after it was given up. Raises what starting it and `when_up` do."""
        if self.state in {"up", "restarting"}:
            return
        self._failure = None
        self._recent.clear()
        self._serve(await self._launch())
        self._watch = asyncio.create_task(self._keep_alive(), name=f"watch {self.spec.name}")

    async def worker(self, timeout: float) -> W:
        """The worker, as soon as it is up. Raises WorkerError (given up), DeadlineError."""
        waiting = asyncio.ensure_future(self._up.wait())
        watch = self._watch
        tasks = {waiting} | ({watch} if watch is not None else set())
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._up.is_set() and self._worker is not None:
            return self._worker
        if self._failure is not None:
            raise self._failure
        raise DeadlineError(f"worker {self.spec.name!r} is {self.state}; it was not up within {timeout:g} s")

    def report(self, worker: object, error: WorkerError) -> None:
        """Reports that a call to the worker failed, whatever its health route returns: it is restarted."""
        if worker is not None and worker is self._worker and not self._suspicion.done():
            self._up.clear()
            self._suspicion.set_result(error)

    async def move(self) -> None:
        """Start another worker beside the one that serves, and end that one when its successor is up.

        Raises what starting it and `when_up` do; then the old one serves on.
        """
        old, watch = self._worker, self._watch
        if old is None or watch is None or not self._up.is_set():
            return  # the next one is started elsewhere anyway
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        try:
            self._serve(await self._launch())
        finally:
            self._watch = asyncio.create_task(self._keep_alive(), name=f"watch {self.spec.name}")
        await old.stop()

    async def close(self) -> None:
        """End the watch and the worker."""
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        self._up.clear()
        self._failure = WorkerDiedError(f"worker {self.spec.name!r} was closed with its server")
        if self._worker is not None:
            await self._worker.stop()
            self._worker = None

    async def _launch(self) -> W:
        worker = await self._start(self.spec)
        try:
            await self._when_up(worker)
        except BaseException:
            await asyncio.shield(worker.kill())
            raise
        return worker

    def _serve(self, worker: W) -> None:
        self._worker = worker
        self.health = {}
        self._suspicion = asyncio.get_running_loop().create_future()
        self._up.set()

    async def _keep_alive(self) -> None:
        while self._failure is None:
            worker = self._worker
            assert worker is not None
            error = await self._wait_for_trouble(worker)
            self._up.clear()
            _log.error("%s", error)
            if isinstance(error, WorkerStalledError):
                await worker.dump_stacks()
            await worker.kill()
            await self._restart(error)

    async def _wait_for_trouble(self, worker: W) -> WorkerError:
        """Wait for the worker's death, a failed health check, or a report."""
        ended = asyncio.ensure_future(worker.wait())
        signs: set[asyncio.Future[Any]] = {ended, self._suspicion}
        try:
            if self._watch_health is not None:
                with self._watch_health(worker, self._keep_health, partial(self.report, worker)):
                    await asyncio.wait(signs, return_when=asyncio.FIRST_COMPLETED)
                return await self._find_cause(worker, ended)
            pulse = StallWatch(worker.label, self.spec.health_deadline)
            while True:
                await asyncio.wait(
                    signs, timeout=self.spec.health_interval, return_when=asyncio.FIRST_COMPLETED
                )
                probe = asyncio.ensure_future(worker.probe())
                await asyncio.wait({probe, *signs}, return_when=asyncio.FIRST_COMPLETED)
                if self._suspicion.done() or ended.done():
                    probe.cancel()
                    return await self._find_cause(worker, ended)
                try:
                    self.health = probe.result()
                    pulse.check(self.health)
                except WorkerError as error:
                    return error
        finally:
            ended.cancel()

    async def _find_cause(self, worker: W, ended: asyncio.Future[Any]) -> WorkerError:
        """The worker's death where it has one: it says more than the connection that broke by it."""
        if not ended.done() and isinstance(self._suspicion.result(), WorkerDiedError):
            await asyncio.wait({ended}, timeout=DEATH_S)
        return worker.death() if ended.done() else self._suspicion.result()

    def _keep_health(self, health: Health) -> None:
        self.health = health

    async def _restart(self, error: WorkerError) -> None:
        """Start again with growing waits, or give up with the last error."""
        cause: Exception = error
        while True:
            attempt = self._count_restart()
            if attempt is None:
                self._worker = None
                self._failure = WorkerDiedError(
                    f"worker {self.spec.name!r} failed {self._policy.limit + 1} times within "
                    f"{self._policy.window:g} s and was given up; register its model again to start "
                    f"it. Last: {cause}"
                )
                _log.error("%s", self._failure)
                self._when_given_up(self._failure)
                return
            await asyncio.sleep(min(self._policy.backoff * 2**attempt, self._policy.backoff_limit))
            try:
                worker = await self._launch()
            except (ARTError, OSError) as failed:
                cause = failed
                _log.error("restart of worker %s failed: %s", self.spec.name, failed)
                continue
            self.restarts += 1
            self._serve(worker)
            _log.warning("worker %s was started again", self.spec.name)
            return

    def _count_restart(self) -> int | None:
        """Returns how many restarts there were within the window before this one; None when that is
        too many.
        """
        now = asyncio.get_running_loop().time()
        while self._recent and now - self._recent[0] > self._policy.window:
            self._recent.popleft()
        if len(self._recent) >= self._policy.limit:
            return None
        self._recent.append(now)
        return len(self._recent) - 1


def supervise(
    name: str,
    start: Start[W],
    *,
    command: Sequence[str] = (),
    config: Mapping[str, Any] = MappingProxyType({}),
    gpus: int = 1,
    copies: int = 1,
    layout: DataLayout,
    settings: ControlSettings,
    when_up: WhenUp[W],
    when_given_up: WhenGivenUp = lambda failure: None,
    watch: Watch[W] | None = None,
) -> Supervisor[W]:
    """Returns the supervisor of the process that `start` starts; it is not started yet.

    command, config, gpus, copies: of a worker of ours, its command line, its start line without a key, the
    GPUs that it computes on together, and how many like it divide the cores of its machine.
    watch: see `Supervisor`.
    """
    spec = WorkerSpec(
        name=name,
        command=command,
        config=config,
        gpus=gpus,
        copies=copies,
        log_path=layout.log_file(name),
        start_deadline=settings.start,
        stop_deadline=settings.stop,
        health_interval=settings.health_interval,
        health_deadline=settings.health_deadline,
    )
    policy = RestartPolicy(limit=settings.restarts, backoff=settings.restart_wait)
    return Supervisor(spec, start, when_up=when_up, when_given_up=when_given_up, policy=policy, watch=watch)


Connect = Callable[[RunningWorker, Deadlines, str], Engine]


def connect_engine(worker: RunningWorker, deadlines: Deadlines, transfer: str) -> Engine:
    """Returns the client of an engine's worker, over HTTP. `transfer`: how a new adapter comes to it."""
    return RemoteEngine(worker.url, worker.key, deadlines, worker.disk, transfer=transfer)


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The configuration of the workers of a base model.

    >>> two = WorkerOptions(engine_options={}, trainer_options={}, replicas=2, devices=["cuda:0", "cuda:1"])
    """

    engine: str = "builtin"
    engine_options: Mapping[str, Any]
    trainer_options: Mapping[str, Any]
    replicas: int = 1
    devices: Sequence[str] | None = None
    """Where each replica computes; None: where its options say."""
    transfer: str = "shelf"
    """How a new adapter comes to the engines."""
    launch: Launch = Worker.start
    """Starts each worker of ours: on this machine, or on one that a cluster chooses."""
    in_cluster: bool = False
    """Whether `launch` starts them on other machines."""
    board: HealthBoard | None = None
    """Where the health of engine workers is posted by those who run them; None: they are asked here."""
    connect: Connect = connect_engine
    """Makes the client of an engine's worker."""
    ranks: TrainerRanks = field(default_factory=TrainerRanks)
    """The processes of a trainer."""

    def __post_init__(self) -> None:
        if self.ranks.nodes > 1 and self.launch == Worker.start:
            raise ConfigurationError(
                f"trainer.nodes is {self.ranks.nodes}, and this server has one machine: give it a cluster, "
                "or leave trainer.nodes out"
            )
        if self.devices is not None and len(self.devices) != self.replicas:
            raise ConfigurationError(
                f"engine.devices names {len(self.devices)} devices for {self.replicas} replicas: "
                f"{list(self.devices)!r}; name one for each, in their order"
            )

    def trainer_launch(self, deadline: float) -> Launch:
        """Returns what starts the trainer: one process, or a gang, whose ranks wait so many seconds for each
        other.
        """
        if self.ranks.ranks == 1:
            return self.launch
        return GangLaunch(self.launch, self.ranks, deadline=deadline)

    def device(self, replica: int) -> str | None:
        """Returns the device of a replica, if it was chosen."""
        return None if self.devices is None else self.devices[replica]


def shared_gpu(engines: Sequence[str], trainer: str) -> bool:
    """Returns whether an engine computes on the trainer's GPU.

    >>> shared_gpu(["cuda:1", "cuda:0"], "cuda")
    True
    >>> shared_gpu(["cpu"], "cpu")
    False
    """
    return _spelled(trainer).startswith("cuda") and _spelled(trainer) in map(_spelled, engines)


def _spelled(device: str) -> str:
    return "cuda:0" if device == "cuda" else device
