"""The replicas of a pool: who is up, who has which adapter, what becomes of one that does not answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from art.engine.protocol import Engine
from art.engine.replicas import Replica
from art.errors import (
    ARTError,
    DeadlineError,
    NotFoundError,
    WorkerDiedError,
    WorkerError,
    WorkerStalledError,
)

_log = logging.getLogger(__name__)

LOST = (WorkerDiedError, WorkerStalledError)

T = TypeVar("T")
Verify = Callable[[Engine, str], Awaitable[None]]
"""Asked about each adapter that an engine has got; raises when the engine computes it wrongly."""
Failed = Callable[[int, WorkerError], None]
"""Told that the replica of that number does not answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Waits:
    """Longest waits of a request, in seconds."""

    up: float = 300.0
    """For a replica that is started again, while no other is up."""
    awake: float = 6 * 3600.0


class Members:
    """The replicas of a pool. `failed` is told of each one that does not answer.

    Who owns the engines puts them in place (`join`) and says when one is gone for good (`give_up`).
    """

    def __init__(self, replicas: int, *, waits: Waits | None, failed: Failed | None) -> None:
        self.replicas = [Replica(number=number) for number in range(replicas)]
        self.adapters: dict[str, Path] = {}
        """What every replica has loaded, or will have when it is back."""
        self.asleep = False
        self.turning = asyncio.Lock()
        """One `sleep` or `wake` at a time."""
        self.closed = False
        self._waits = waits or Waits()
        self._failed = failed
        self._changed = asyncio.Event()
        self._checks: set[asyncio.Task[None]] = set()

    @property
    def up(self) -> list[Replica]:
        """Those that take requests."""
        return [replica for replica in self.replicas if replica.up]

    async def join(self, number: int, engine: Engine, verify: Verify | None = None) -> None:
        """Put an engine in its place. It takes requests when it has every adapter.

        Raises what loading and `verify` raise; then its place stays empty.
        """
        replica = self.replicas[number]
        replica.up = False
        replica.info = await engine.info()
        loaded = await self._catch_up(engine, set(), verify, asleep=False)
        before = replica.engine
        self._put(replica, engine, loaded)
        if before is not None and before is not engine:
            await before.close()

    def give_up(self, number: int, failure: ARTError) -> None:
        """This replica does not come back: nobody needs to wait for it."""
        self.replicas[number].up, self.replicas[number].failure = False, failure
        self.tell()

    def _put(self, replica: Replica, engine: Engine, loaded: set[str]) -> None:
        replica.engine, replica.adapters, replica.failure = engine, loaded, None
        replica.up, replica.starts = True, replica.starts + 1
        self.tell()

    async def _catch_up(
        self, engine: Engine, loaded: set[str], verify: Verify | None = None, *, asleep: bool | None
    ) -> set[str]:
        """Load what is missing, and sleep if the others do. There is no wait after the last look."""
        lost: set[str] = set()
        while True:
            if missing := [name for name in self.adapters if name not in loaded | lost]:
                name, path = missing[0], self.adapters[missing[0]]
                if not path.exists():  # its checkpoint was deleted: it only waits for its last request
                    lost.add(name)
                    if not any(name in replica.adapters for replica in self.up):
                        del self.adapters[name]
                    continue
                await engine.load_adapter(name, path)
                loaded.add(name)
                if verify is not None:
                    await verify(engine, name)
            elif stale := [name for name in loaded if name not in self.adapters]:
                loaded.discard(stale[0])
                await engine.unload_adapter(stale[0])
            elif self.asleep is not asleep:
                asleep = self.asleep
                await (engine.sleep() if asleep else engine.wake())
            else:
                return loaded

    def having(self, adapter: str | None) -> list[Replica]:
        """Replicas that have an adapter; of one that nobody knows an engine says so."""
        anywhere = adapter is None or adapter not in self.adapters
        return [replica for replica in self.up if anywhere or adapter in replica.adapters]

    def coming(self) -> bool:
        """Whether a replica is down that may come back."""
        return any(not replica.up and replica.failure is None for replica in self.replicas)

    def awake(self) -> bool:
        """Whether requests are let through."""
        return self.closed or not (self.asleep or self.turning.locked())

    async def someone(self, *, awake: bool = True) -> None:
        """Wait until somebody is up, and awake if that matters."""
        await self.until(lambda: (self.awake() or not awake) and bool(self.up or not self.coming()))
        self.check_open()
        if not self.up:
            raise self.gone()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that `tell` is called after. Raises DeadlineError."""
        if condition():
            return
        what, seconds = ("to wake", self._waits.awake) if self.asleep else ("to be up", self._waits.up)
        try:
            async with asyncio.timeout(seconds):
                while not condition() and not self.closed:
                    await self._changed.wait()
        except TimeoutError as error:
            raise DeadlineError(f"the engine was waited for {what} for {seconds:g} s") from error

    def tell(self) -> None:
        """Whoever waits looks again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def check_open(self) -> None:
        """Raises WorkerError after `close`."""
        if self.closed:
            raise WorkerError("the engine is closed")

    def gone(self) -> ARTError:
        """Why nobody answers."""
        failures = [replica.failure for replica in self.replicas if replica.failure is not None]
        return failures[0] if failures else WorkerDiedError("no replica of the engine is up")

    async def on_each(
        self, call: Callable[[Engine], Awaitable[T]], among: Sequence[Replica] | None = None
    ) -> dict[int, T]:
        """Call several replicas at once (None: all that are up). Those that die are left out, unless all
        do.
        """
        replicas = self.up if among is None else among
        pairs = [(replica, replica.engine) for replica in replicas if replica.engine is not None]
        asked = [asyncio.ensure_future(_awaited(call(engine))) for _, engine in pairs]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        done: dict[int, T] = {}
        lost: list[BaseException] = []
        for (replica, engine), answer in zip(pairs, answers, strict=True):
            if isinstance(answer, LOST):
                self.suspect(replica, engine, answer)
                lost.append(answer)
            elif not isinstance(answer, BaseException):
                done[replica.number] = answer
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, LOST):
                raise answer
        if lost and not done:
            raise lost[0]
        return done

    async def drop(self, name: str) -> None:
        """Take back what some replicas loaded and others refused."""
        for replica in self.up:
            replica.adapters.discard(name)
            assert replica.engine is not None
            try:
                await replica.engine.unload_adapter(name)
            except NotFoundError:
                continue  # it is one of those that refused it
            except ARTError as error:
                _log.warning("adapter %s stays loaded on replica %d: %s", name, replica.number, error)

    def suspect(self, replica: Replica, engine: Engine, error: WorkerError) -> None:
        """No more requests for a replica that was lost, until it is known what became of it."""
        if isinstance(error, LOST) and replica.engine is engine and replica.up and not self.closed:
            replica.up = False
            self.tell()
            check = asyncio.create_task(self._check(replica, engine, error))
            self._checks.add(check)
            check.add_done_callback(self._checks.discard)

    async def _check(self, replica: Replica, engine: Engine, error: WorkerError) -> None:
        life = replica.life
        if isinstance(error, WorkerDiedError):  # or was it only a connection that broke?
            try:
                await engine.info()
                loaded = await self._catch_up(engine, set(replica.adapters), asleep=None)
            except ARTError as failure:
                _log.info("replica %d does not answer: %s", replica.number, failure)
            else:
                if replica.life == life and not replica.up:
                    self._put(replica, engine, loaded)
                return
        if self._failed is not None:
            self._failed(replica.number, error)

    async def close(self) -> None:
        """Everybody who waits fails; every engine is closed."""
        self.closed = True
        self.tell()
        for check in self._checks:
            check.cancel()
        engines = [replica.engine for replica in self.replicas if replica.engine is not None]
        await asyncio.gather(*(engine.close() for engine in engines))


async def _awaited(answer: Awaitable[T]) -> T:
    return await answer
