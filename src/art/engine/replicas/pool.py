"""A set of replicas of one engine, used as one `Engine`.

a rollout's requests        stay on one replica, which has their prefixes (`ReplicaRing`)
a replica dies              its requests go on elsewhere, or on itself once it is back (`Continuation`)
an adapter is loaded        on every replica, or on none
a replica comes (back) up   it gets all adapters before it gets a request (`EnginePool.join`)
asleep                      requests wait here, in no engine, until `wake`
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from art.engine.protocol import Delta, Engine, EngineInfo, GenerateRequest, Ranked, Rows
from art.engine.replicas.continuation import Continuation
from art.engine.replicas.fan_out import call_each
from art.engine.replicas.ring import Replica, ReplicaRing
from art.errors import (
    ARTError,
    DeadlineError,
    NotFoundError,
    OverloadedError,
    WorkerDiedError,
    WorkerError,
    WorkerStalledError,
    WorkerUnreachableError,
)
from art.wire.engine import Alternatives

_log = logging.getLogger(__name__)

LOST = (WorkerDiedError, WorkerStalledError)

T = TypeVar("T")
Verify = Callable[[Engine, str], Awaitable[None]]
"""Asked about each adapter that an engine has got; raises when the engine computes it wrongly."""
OnFailure = Callable[[int, WorkerError], None]
"""Is called with the number of a replica that does not answer, and with its error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaWaits:
    """Longest waits of a request, in seconds."""

    up: float = 300.0
    """Seconds to wait for a replica that is started again, while no other is up."""
    awake: float = 6 * 3600.0
    straggle: float = 30.0
    """Seconds to wait for a replica that loads or scores, once most others have; it is then started again."""


DEATHS = 3
"""A request under which so many engines died is not tried again: it may be what ends them. One that could not
be reached does not count: where a rack is lost, many are dead before they get a request."""


@dataclass(slots=True, eq=False)
class _Attempts:
    """The engines tried for a completion or for scores, and their outcomes."""

    tried: set[tuple[int, int]] = field(default_factory=set)
    deaths: int = 0
    last: ARTError | None = None

    def failed(self, error: ARTError) -> None:
        self.last = error
        self.deaths += isinstance(error, LOST) and not isinstance(error, WorkerUnreachableError)

    @property
    def exhausted(self) -> bool:
        return self.deaths >= DEATHS


class EnginePool:
    """Replicas as one `art.engine.protocol.Engine`. `failed` is told of each one that does not answer.

    Who owns the engines puts them in place (`join`) and says when one is gone for good (`give_up`).
    """

    def __init__(
        self, replicas: int, *, waits: ReplicaWaits | None = None, failed: OnFailure | None = None
    ) -> None:
        self.replicas = [Replica(number=number) for number in range(replicas)]
        self._ring = ReplicaRing(self.replicas)
        self.adapters: dict[str, Path] = {}
        """What every replica has loaded, or will have when it is back."""
        self.asleep = False
        self.closed = False
        self._turning = asyncio.Lock()
        """One `sleep` or `wake` at a time."""
        self._on_hold = 0
        """Requests that wait here: for `wake`, or for a replica."""
        self._most_on_hold = 0
        self._waits = waits or ReplicaWaits()
        self._failed = failed
        self._changed = asyncio.Event()
        self._checks: set[asyncio.Task[None]] = set()

    @property
    def running_replicas(self) -> list[Replica]:
        """Returns the replicas that accept requests."""
        return [replica for replica in self.replicas if replica.up]

    @property
    def requests_on_hold(self) -> int:
        """Requests that wait here, in no engine's queue."""
        return self._on_hold

    @classmethod
    async def from_engines(cls, *engines: Engine) -> EnginePool:
        """A pool of engines that run."""
        pool = cls(len(engines))
        for number, engine in enumerate(engines):
            await pool.join(number, engine)
        return pool

    async def info(self) -> EngineInfo:
        """Returns the description of all running replicas: counts are sums, the context is the shortest,
        adapters are those that all have.
        """
        await self.wait_until_up(awake=False)
        infos = list((await self._on_each(lambda engine: engine.info())).values())
        shared = set(infos[0].adapters).intersection(*(info.adapters for info in infos))
        return replace(
            infos[0],
            max_context=min(info.max_context for info in infos),
            adapters=tuple(name for name in infos[0].adapters if name in shared),
            running=sum(info.running for info in infos),
            waiting=sum(info.waiting for info in infos) + self._on_hold,
            max_waiting=sum(info.max_waiting for info in infos),
        )

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        """See `Engine.generate`. An engine's death is not the request's, unless `DEATHS` of them die under
        it, or no other can go on exactly where it was.
        """
        continuation, attempts = Continuation(request), _Attempts()
        while True:
            replica = self._only_replica(request.adapter, attempts) or await self._choose(
                request.adapter, request.affinity, attempts
            )
            engine = self._begin(replica, attempts)
            try:
                async with aclosing(engine.generate(continuation.request())) as deltas:  # type: ignore[type-var]
                    async for delta in deltas:
                        if (news := continuation.next_delta(delta)) is not None:
                            yield news
                return
            except OverloadedError as error:
                attempts.failed(error)
            except WorkerError as error:
                if continuation.broken:
                    raise
                attempts.failed(error)
                self._suspect(replica, engine, error)
            finally:
                self._ring.end(replica)

    async def score(self, adapter: str | None, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """See `Engine.score`: by one replica. `score_each` asks all."""
        return await self._by_one(adapter, lambda engine: engine.score(adapter, rows))

    async def rank(
        self, adapter: str | None, rows: Rows, most: int, alternatives: Alternatives | None = None
    ) -> list[Ranked]:
        """See `Engine.rank`: by one replica."""
        return await self._by_one(adapter, lambda engine: engine.rank(adapter, rows, most, alternatives))

    async def _by_one(self, adapter: str | None, ask: Callable[[Engine], Awaitable[T]]) -> T:
        attempts = _Attempts()
        while True:
            replica = await self._choose(adapter, None, attempts)
            engine = self._begin(replica, attempts)
            try:
                return await ask(engine)
            except WorkerError as error:
                attempts.failed(error)
                self._suspect(replica, engine, error)
            finally:
                self._ring.end(replica)

    async def score_each(
        self, adapter: str | None, rows: Sequence[Sequence[int]]
    ) -> dict[int, list[list[float]]]:
        """The scores of every replica that is up, by its number. Raises WorkerError when none answers."""
        for _ in range(DEATHS):
            await self.wait_until_up()
            having = self._replicas_with(adapter)
            scores = await self._on_each(lambda engine: engine.score(adapter, rows), having, straggle=True)
            if scores:
                return scores
        raise WorkerDiedError(f"each replica that was to score rows under {adapter!r} was started again")

    async def load_adapter(self, name: str, path: Path) -> None:
        """See `Engine.load_adapter`. What one replica refuses, none keeps; one that dies, or is far slower
        than the others, gets it before it gets requests again.
        """
        await self.wait_until_up()
        before = self.adapters.get(name)
        self.adapters[name] = path  # whoever comes up from now on loads it
        try:
            done = await self._on_each(lambda engine: engine.load_adapter(name, path), straggle=True)
        except BaseException as error:
            if before is not None:
                self.adapters[name] = before
            else:
                self.adapters.pop(name, None)
                if isinstance(error, ARTError):
                    await self._unload_everywhere(name)
            raise
        for number in done:
            self.replicas[number].adapters.add(name)
        self._notify()

    async def unload_adapter(self, name: str) -> None:
        """See `Engine.unload_adapter`."""
        await self.wait_until_up()
        known = self.adapters.pop(name, None) is not None
        having = [replica for replica in self.running_replicas if name in replica.adapters]
        for replica in having:
            replica.adapters.discard(name)
        # An unknown name is refused by an engine, in its own words.
        await self._on_each(
            lambda engine: engine.unload_adapter(name), having if known else self.running_replicas[:1]
        )

    async def sleep(self) -> None:
        """See `Engine.sleep`. New requests wait in the pool. `wake` is to follow, also where this fails."""
        async with self._turning:
            self.asleep = True
            await self._on_each(lambda engine: engine.sleep())

    async def wake(self) -> None:
        """See `Engine.wake`."""
        try:
            async with self._turning:
                if self.asleep:
                    self.asleep = False
                    await self._on_each(lambda engine: engine.wake())
        finally:
            self._notify()

    async def close(self) -> None:
        """See `Engine.close`: requests that wait fail, and every engine is closed."""
        self.closed = True
        self._notify()
        for check in self._checks:
            check.cancel()
        engines = [replica.engine for replica in self.replicas if replica.engine is not None]
        await asyncio.gather(*(engine.close() for engine in engines))

    def _only_replica(self, adapter: str | None, attempts: _Attempts) -> Replica | None:
        """Returns the only replica if it can begin at once."""
        if len(self.replicas) != 1 or attempts.last is not None:
            return None
        if self.closed or not self._is_awake() or not (found := self._replicas_with(adapter)):
            return None
        return found[0]

    async def _choose(self, adapter: str | None, affinity: str | None, attempts: _Attempts) -> Replica:
        """The replica of a request, as soon as there is one that has not failed it."""
        last = attempts.last

        def fits(replica: Replica) -> bool:
            has_it = adapter is None or adapter in replica.adapters or adapter not in self.adapters
            return has_it and replica.incarnation not in attempts.tried

        def find() -> Replica | None:
            return self._ring.choose(affinity, fits)

        found = None if attempts.exhausted else find()
        if last is not None and found is None:
            if attempts.exhausted or not (isinstance(last, LOST) and self._one_may_come_back()):
                raise last
        if not (self._is_awake() and found):
            await self._wait_on_hold(
                lambda: self._is_awake() and bool(find() or not self._one_may_come_back())
            )
            found = find()
        self._check_open()
        if found is None:
            raise last or self._why_none_is_up()
        return found

    def _begin(self, replica: Replica, attempts: _Attempts) -> Engine:
        assert replica.engine is not None
        attempts.tried.add(replica.incarnation)
        self._ring.begin(replica)
        return replica.engine

    async def _wait_on_hold(self, until: Callable[[], bool]) -> None:
        """A request waits. Raises OverloadedError when too many do."""
        if self._on_hold >= self._most_on_hold:
            raise OverloadedError(
                f"{self._on_hold} requests wait for the engine, the limit is {self._most_on_hold}; try again "
                "later",
                code="queue_full",
            )
        self._on_hold += 1
        try:
            await self._wait_until(until)
        finally:
            self._on_hold -= 1

    async def join(self, number: int, engine: Engine, verify: Verify | None = None) -> None:
        """Adds an engine in its place. It gets requests once it has every adapter.

        Raises what loading and `verify` raise; then its place stays empty.
        """
        replica = self.replicas[number]
        self._ring.set_up(replica, False)
        before_info, replica.info = replica.info, await engine.info()
        self._most_on_hold += replica.info.max_waiting - (before_info.max_waiting if before_info else 0)
        loaded = await self._catch_up(engine, set(), verify, asleep=False)
        before = replica.engine
        self._set_engine(replica, engine, loaded)
        if before is not None and before is not engine:
            await before.close()

    def give_up(self, number: int, failure: ARTError) -> None:
        """Gives up a replica, so that no request waits for it."""
        self._ring.set_up(self.replicas[number], False)
        self.replicas[number].failure = failure
        self._notify()

    def _set_engine(self, replica: Replica, engine: Engine, loaded: set[str]) -> None:
        replica.engine, replica.adapters, replica.failure = engine, loaded, None
        replica.starts += 1
        self._ring.set_up(replica, True)
        self._notify()

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
                    if not any(name in replica.adapters for replica in self.running_replicas):
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

    def _replicas_with(self, adapter: str | None) -> list[Replica]:
        """Replicas that have an adapter; of one that nobody knows an engine says so."""
        anywhere = adapter is None or adapter not in self.adapters
        return [replica for replica in self.running_replicas if anywhere or adapter in replica.adapters]

    def _one_may_come_back(self) -> bool:
        """Returns whether a replica is down that may come back."""
        return any(not replica.up and replica.failure is None for replica in self.replicas)

    def _is_awake(self) -> bool:
        """Returns whether requests are let through."""
        return self.closed or not (self.asleep or self._turning.locked())

    async def wait_until_up(self, *, awake: bool = True) -> None:
        """Wait until somebody is up, and awake if that matters."""
        await self._wait_until(
            lambda: (
                (self._is_awake() or not awake)
                and bool(self.running_replicas or not self._one_may_come_back())
            )
        )
        self._check_open()
        if not self.running_replicas:
            raise self._why_none_is_up()

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that `_notify` is called after. Raises DeadlineError."""
        if condition():
            return
        what, seconds = ("to wake", self._waits.awake) if self.asleep else ("to be up", self._waits.up)
        try:
            async with asyncio.timeout(seconds):
                while not condition() and not self.closed:
                    await self._changed.wait()
        except TimeoutError as error:
            raise DeadlineError(f"the engine was waited for {what} for {seconds:g} s") from error

    def _notify(self) -> None:
        """Wakes all waiting requests."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _check_open(self) -> None:
        """Raises WorkerError after `close`."""
        if self.closed:
            raise WorkerError("the engine is closed")

    def _why_none_is_up(self) -> ARTError:
        """Returns why nobody answers."""
        failures = [replica.failure for replica in self.replicas if replica.failure is not None]
        return failures[0] if failures else WorkerDiedError("no replica of the engine is up")

    async def _on_each(
        self,
        call: Callable[[Engine], Awaitable[T]],
        among: Sequence[Replica] | None = None,
        *,
        straggle: bool = False,
    ) -> dict[int, T]:
        """Call several replicas (None: all that are up). Those that die are left out, unless all do.

        straggle: those that are far slower than most are taken for stalled (`ReplicaWaits.straggle`).
        """
        replicas = self.running_replicas if among is None else among
        engines = {one.number: one.engine for one in replicas if one.engine is not None}
        answers = await call_each(
            {number: partial(_awaited, call, engine) for number, engine in engines.items()},
            straggle=self._waits.straggle if straggle else None,
        )
        done: dict[int, T] = {}
        lost: list[BaseException] = []
        refused: list[BaseException] = []
        for number, answer in answers.items():
            if isinstance(answer, LOST):
                self._suspect(self.replicas[number], engines[number], answer)
                lost.append(answer)
            elif not isinstance(answer, BaseException):
                done[number] = answer
            elif self.replicas[number].engine is engines[number]:  # another has its place and has caught up
                refused.append(answer)
        if refused:
            raise refused[0]
        if lost and not done:
            raise lost[0]
        return done

    async def _unload_everywhere(self, name: str) -> None:
        """Take back what some replicas loaded and others refused."""
        engines: dict[int, Engine] = {}
        for replica in self.running_replicas:
            assert replica.engine is not None
            replica.adapters.discard(name)
            engines[replica.number] = replica.engine
        unload = partial(_awaited, lambda engine: engine.unload_adapter(name))
        answers = await call_each({number: partial(unload, engine) for number, engine in engines.items()})
        for number, answer in answers.items():
            if isinstance(answer, ARTError) and not isinstance(answer, NotFoundError):  # one that refused it
                _log.warning("adapter %s stays loaded on replica %d: %s", name, number, answer)

    def _suspect(self, replica: Replica, engine: Engine, error: WorkerError) -> None:
        """No more requests for a replica that was lost, until it is known what became of it."""
        if isinstance(error, LOST) and replica.engine is engine and replica.up and not self.closed:
            self._ring.set_up(replica, False)
            self._notify()
            check = asyncio.create_task(self._check(replica, engine, error))
            self._checks.add(check)
            check.add_done_callback(self._checks.discard)

    async def _check(self, replica: Replica, engine: Engine, error: WorkerError) -> None:
        life = replica.incarnation
        if isinstance(error, WorkerDiedError):  # or was it only a connection that broke?
            try:
                await engine.info()
                loaded = await self._catch_up(engine, set(replica.adapters), asleep=None)
            except ARTError as failure:
                _log.info("replica %d does not answer: %s", replica.number, failure)
            else:
                if replica.incarnation == life and not replica.up:
                    self._set_engine(replica, engine, loaded)
                return
        if self._failed is not None:
            self._failed(replica.number, error)


async def _awaited(call: Callable[[Engine], Awaitable[T]], engine: Engine) -> T:
    return await call(engine)
