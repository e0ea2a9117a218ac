"""Several replicas of one engine as one `Engine`.

a rollout's requests        stay on one replica, which has their prefixes (`replicas.choose`)
a replica dies              its requests go on elsewhere, or on itself once it is back (`continuation`)
an adapter is loaded        on every replica, or on none
a replica comes (back) up   it gets all adapters before it gets a request (`members`)
asleep                      requests wait here, in no engine, until `wake`
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from art.engine.continuation import Continuation
from art.engine.members import LOST, Failed, Members, Waits
from art.engine.protocol import Delta, Engine, EngineInfo, GenerateRequest, Ranked
from art.engine.replicas import Replica, choose
from art.errors import ARTError, OverloadedError, WorkerError

T = TypeVar("T")

DEATHS = 3
"""A request under which so many engines died is not tried again: it may be what ends them."""


@dataclass(slots=True, eq=False)
class _Attempts:
    """Who was asked for a completion or for scores, and how it went."""

    tried: set[tuple[int, int]] = field(default_factory=set)
    deaths: int = 0
    last: ARTError | None = None

    def failed(self, error: ARTError) -> None:
        self.last = error
        self.deaths += isinstance(error, LOST)

    @property
    def over(self) -> bool:
        return self.deaths >= DEATHS


class EnginePool:
    """See `art.engine.protocol.Engine`."""

    def __init__(self, replicas: int, *, waits: Waits | None = None, failed: Failed | None = None) -> None:
        self.members = Members(replicas, waits=waits, failed=failed)
        self._held = 0
        """Requests that wait here: for `wake`, or for a replica."""

    @property
    def held(self) -> int:
        """Requests that wait here, in no engine's queue."""
        return self._held

    @classmethod
    async def of(cls, *engines: Engine) -> EnginePool:
        """A pool of engines that run."""
        pool = cls(len(engines))
        for number, engine in enumerate(engines):
            await pool.members.join(number, engine)
        return pool

    async def info(self) -> EngineInfo:
        """Of all that are up: counts are sums, the context is the shortest, adapters are what all have."""
        await self.members.someone(awake=False)
        infos = list((await self.members.on_each(lambda engine: engine.info())).values())
        shared = set(infos[0].adapters).intersection(*(info.adapters for info in infos))
        return replace(
            infos[0],
            max_context=min(info.max_context for info in infos),
            adapters=tuple(name for name in infos[0].adapters if name in shared),
            running=sum(info.running for info in infos),
            waiting=sum(info.waiting for info in infos) + self._held,
            max_waiting=sum(info.max_waiting for info in infos),
        )

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        """See `Engine.generate`. An engine's death is not the request's, unless `DEATHS` of them die under
        it, or no other can go on exactly where it was.
        """
        course, attempts = Continuation(request), _Attempts()
        while True:
            replica = self._only(request.adapter, attempts) or await self._choose(
                request.adapter, request.affinity, attempts
            )
            engine = _begin(replica, attempts)
            try:
                async with aclosing(engine.generate(course.request())) as deltas:  # type: ignore[type-var]
                    async for delta in deltas:
                        if (news := course.take(delta)) is not None:
                            yield news
                return
            except OverloadedError as error:
                attempts.failed(error)
            except WorkerError as error:
                if course.broken:
                    raise
                attempts.failed(error)
                self.members.suspect(replica, engine, error)
            finally:
                replica.open -= 1

    async def score(self, adapter: str | None, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """See `Engine.score`: by one replica. `score_each` asks all."""
        return await self._by_one(adapter, lambda engine: engine.score(adapter, rows))

    async def rank(self, adapter: str | None, rows: Sequence[Sequence[int]], most: int) -> list[Ranked]:
        """See `Engine.rank`: by one replica."""
        return await self._by_one(adapter, lambda engine: engine.rank(adapter, rows, most))

    async def _by_one(self, adapter: str | None, ask: Callable[[Engine], Awaitable[T]]) -> T:
        attempts = _Attempts()
        while True:
            replica = await self._choose(adapter, None, attempts)
            engine = _begin(replica, attempts)
            try:
                return await ask(engine)
            except WorkerError as error:
                attempts.failed(error)
                self.members.suspect(replica, engine, error)
            finally:
                replica.open -= 1

    async def score_each(
        self, adapter: str | None, rows: Sequence[Sequence[int]]
    ) -> dict[int, list[list[float]]]:
        """The scores of every replica that is up, by its number. Raises WorkerError when none answers."""
        await self.members.someone()
        having = self.members.having(adapter)
        return await self.members.on_each(lambda engine: engine.score(adapter, rows), having)

    async def load_adapter(self, name: str, path: Path) -> None:
        """See `Engine.load_adapter`. What one replica refuses, none keeps; one that dies gets it when it is
        back.
        """
        members = self.members
        await members.someone()
        before = members.adapters.get(name)
        members.adapters[name] = path  # whoever comes up from now on loads it
        try:
            done = await members.on_each(lambda engine: engine.load_adapter(name, path))
        except BaseException as error:
            if before is not None:
                members.adapters[name] = before
            else:
                members.adapters.pop(name, None)
                if isinstance(error, ARTError):
                    await members.drop(name)
            raise
        for number in done:
            members.replicas[number].adapters.add(name)
        members.tell()

    async def unload_adapter(self, name: str) -> None:
        """See `Engine.unload_adapter`."""
        members = self.members
        await members.someone()
        known = members.adapters.pop(name, None) is not None
        having = [replica for replica in members.up if name in replica.adapters]
        for replica in having:
            replica.adapters.discard(name)
        # An unknown name is refused by an engine, in its own words.
        await members.on_each(lambda engine: engine.unload_adapter(name), having if known else members.up[:1])

    async def sleep(self) -> None:
        """See `Engine.sleep`. New requests wait in the pool. `wake` is to follow, also where this fails."""
        async with self.members.turning:
            self.members.asleep = True
            await self.members.on_each(lambda engine: engine.sleep())

    async def wake(self) -> None:
        """See `Engine.wake`."""
        try:
            async with self.members.turning:
                if self.members.asleep:
                    self.members.asleep = False
                    await self.members.on_each(lambda engine: engine.wake())
        finally:
            self.members.tell()

    async def close(self) -> None:
        """See `Engine.close`: requests that wait fail."""
        await self.members.close()

    def _only(self, adapter: str | None, attempts: _Attempts) -> Replica | None:
        """Where there is one replica and it can begin at once, there is nothing to choose."""
        members = self.members
        if len(members.replicas) != 1 or attempts.last is not None:
            return None
        if members.closed or not members.awake() or not (found := members.having(adapter)):
            return None
        return found[0]

    async def _choose(self, adapter: str | None, affinity: str | None, attempts: _Attempts) -> Replica:
        """The replica of a request, as soon as there is one that has not failed it."""
        members, last = self.members, attempts.last

        def fit() -> list[Replica]:
            return [one for one in members.having(adapter) if one.life not in attempts.tried]

        hopeless = attempts.over or not (isinstance(last, LOST) and members.coming())
        if last is not None and hopeless and (attempts.over or not fit()):
            raise last
        if not (members.awake() and fit()):
            await self._hold(lambda: members.awake() and bool(fit() or not members.coming()))
        members.check_open()
        if not (found := fit()):
            raise last or members.gone()
        return choose(found, affinity)

    async def _hold(self, until: Callable[[], bool]) -> None:
        """A request waits. Raises OverloadedError when too many do."""
        infos = [replica.info for replica in self.members.replicas if replica.info is not None]
        most = sum(info.max_waiting for info in infos)
        if self._held >= most:
            raise OverloadedError(
                f"{self._held} requests wait for the engine, the limit is {most}; try again later",
                code="queue_full",
            )
        self._held += 1
        try:
            await self.members.until(until)
        finally:
            self._held -= 1


def _begin(replica: Replica, attempts: _Attempts) -> Engine:
    assert replica.engine is not None
    attempts.tried.add(replica.life)
    replica.open += 1
    return replica.engine
