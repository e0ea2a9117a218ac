"""Several trainer processes as one worker: started together, watched together, ended together.

The leader, rank 0, starts first; its health says where the others meet it. They start at the same time and
are ready when all have met. From then on a rank that dies or stalls is the end of the gang: the supervisor
kills what is left and starts all of it again, and the job begins anew from the last committed step.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from art.errors import ConfigurationError, WorkerDiedError, WorkerError, WorkerStalledError
from art.process.resources import no_tls
from art.process.worker import GangPlace, Launch, RunningWorker, WorkerDisk, WorkerSpec
from art.wire.training import FoundFolder, RankSpec, Sharding

TELL_S = 10.0
"""Seconds for a rank to hear where its machine has a folder."""
GRACE = 1.0
"""Seconds in which ranks that start say what failed."""
CAUSE_S = 5.0
"""Ranks that lost one may be heard of before it: the end of a killed process takes time on a busy machine."""
LOST_RANKS = "code 75"
"""How a rank ends that lost the others (`art.training.worker`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerRanks:
    """The number of processes that train together, and of their machines; how they divide the base model."""

    ranks: int = 1
    nodes: int = 1
    sharding: Sharding = "none"


class GangLaunch:
    """Starts a gang by starting each of its ranks through another `Launch`."""

    def __init__(self, launch: Launch, ranks: TrainerRanks, *, deadline: float) -> None:
        """deadline: seconds that a rank waits for the others."""
        self._launch, self._ranks, self._deadline = launch, ranks, deadline

    async def __call__(self, spec: WorkerSpec) -> RunningWorker:
        """Raises what starting a rank raises: ConfigurationError, WorkerDiedError, DeadlineError."""
        leader = await self._launch(self._spec(spec, 0, None))
        members = [leader]
        try:
            meeting = await _meeting_point(leader)
            members += await _all_or_none(
                [self._launch(self._spec(spec, rank, meeting)) for rank in range(1, self._ranks.ranks)],
                leader,
            )
        except BaseException:
            await asyncio.shield(_each(member.kill for member in members))
            raise
        return Gang(members, spec)

    def _spec(self, spec: WorkerSpec, rank: int, rendezvous: str | None) -> WorkerSpec:
        ranks = self._ranks
        place = GangPlace(name=spec.name, rank=rank, ranks=ranks.ranks, nodes=ranks.nodes)
        rank_spec = RankSpec(
            rank=rank,
            world=ranks.ranks,
            local_rank=place.local_rank,
            rendezvous=rendezvous,
            sharding=ranks.sharding,
            deadline=self._deadline,
        )
        name = spec.name if rank == 0 else f"{spec.name}-rank{rank}"
        log = spec.log_path.with_name(spec.log_path.name.replace(spec.name, name, 1))
        config = {**spec.config, "gang": rank_spec.model_dump(mode="json")}
        copies = ranks.ranks // ranks.nodes
        return replace(spec, name=name, log_path=log, config=config, gang=place, copies=copies)


async def _meeting_point(leader: RunningWorker) -> str:
    """`host:port` where the leader waits for the others. Raises WorkerDiedError, WorkerStalledError."""
    port = (await leader.probe()).get("rendezvous")
    if port is None:
        raise WorkerDiedError(f"{leader.label} does not say where other ranks meet it")
    host = urlsplit(leader.url).hostname or ""
    return f"{f'[{host}]' if ':' in host else host}:{port}"


async def _all_or_none(
    starting: Sequence[Awaitable[RunningWorker]], leader: RunningWorker
) -> list[RunningWorker]:
    """All ranks, once they have met. The first that fails ends the others' start, and so does the leader's
    end; a rank that refuses its configuration says more than the others, which wait for it.
    """
    tasks = [asyncio.ensure_future(one) for one in starting]
    ended = asyncio.ensure_future(leader.wait())
    try:
        waiting: set[asyncio.Future[Any]] = {ended, *tasks}
        while not all(task.done() for task in tasks):
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if ended in done or any(task.exception() for task in done):
                await asyncio.wait(tasks, timeout=GRACE)
                break
        failed = [error for task in tasks if task.done() and (error := task.exception())]
        if failed or ended.done():
            refusals = [error for error in failed if isinstance(error, ConfigurationError)]
            raise next(iter(refusals), leader.death() if ended.done() else failed[0])
        return [task.result() for task in tasks]
    except BaseException:
        for task in tasks:
            task.cancel()
        started = await asyncio.gather(*tasks, return_exceptions=True)
        await _each(one.kill for one in started if not isinstance(one, BaseException))
        raise
    finally:
        ended.cancel()


class Gang:
    """All ranks as one `RunningWorker`: the leader's address and key, everybody's life."""

    def __init__(self, members: Sequence[RunningWorker], spec: WorkerSpec) -> None:
        self.members = list(members)
        self.url, self.key = members[0].url, members[0].key
        self.node = str(getattr(members[0], "node", ""))
        self.nodes = [one.node for one in members]
        self.disk: WorkerDisk = GangDisk(members)
        self._spec = spec
        self._waits = [asyncio.ensure_future(one.wait()) for one in members]
        self._first: int | None = None
        """The rank whose end was the gang's."""

    @property
    def label(self) -> str:
        return f"gang {self._spec.name!r} of {len(self.members)} ranks ({self.members[0].label} leads)"

    async def wait(self) -> object:
        """Returns when the first of them ended, or soon after where that one lost the others."""
        await asyncio.wait(self._waits, return_when=asyncio.FIRST_COMPLETED)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CAUSE_S):
                while not self._guilty() and (pending := [one for one in self._waits if not one.done()]):
                    await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if self._first is None:
            self._first = min(self._guilty() or self._ended())
        return None

    def death(self) -> WorkerDiedError:
        """The error of the rank that died first, as far as that can be told."""
        if not self._ended():
            return WorkerDiedError(f"{self.label} ended")
        first = min(self._guilty() or self._ended()) if self._first is None else self._first
        death = self.members[first].death()
        return type(death)(f"rank {first} of {len(self.members)}: {death}")

    async def probe(self) -> Mapping[str, Any]:
        """Returns the leader's health, and all ranks' devices. Raises WorkerDiedError, WorkerStalledError,
        naming the rank.
        """
        answers = await asyncio.gather(*(one.probe() for one in self.members), return_exceptions=True)
        for rank, answer in enumerate(answers):
            if isinstance(answer, WorkerStalledError | WorkerDiedError):
                raise type(answer)(f"rank {rank} of {len(self.members)}: {answer}")
            if isinstance(answer, BaseException):
                raise answer
        healths = [one for one in answers if not isinstance(one, BaseException)]
        return {**healths[0], "ranks": len(healths), "devices": [one.get("device") for one in healths]}

    async def dump_stacks(self) -> None:
        """Writes the stacks of all ranks to their logs."""
        await _each(one.dump_stacks for one in self.members)

    async def stop(self) -> None:
        """Ends all ranks; what does not end in time is killed."""
        await _each(one.stop for one in self.members)
        self._close()

    async def kill(self) -> None:
        """Kills all ranks."""
        await _each(one.kill for one in self.members)
        self._close()

    def _ended(self) -> list[int]:
        return [rank for rank, wait in enumerate(self._waits) if wait.done()]

    def _guilty(self) -> list[int]:
        """Returns those that ended for a reason of their own, not because they lost another."""
        return [rank for rank in self._ended() if LOST_RANKS not in str(self.members[rank].death())]

    def _close(self) -> None:
        for wait in self._waits:
            wait.cancel()


class GangDisk:
    """The disks of all ranks. Every rank reads; the leader alone writes."""

    def __init__(self, members: Sequence[RunningWorker]) -> None:
        self._members = members

    async def fetch(self, folder: Path, *, without: Collection[str] = ()) -> Path:
        """Returns where the leader finds it. Each rank whose machine has it at another path is told so.

        Raises WorkerError, naming the rank that could not be told.
        """
        paths = await asyncio.gather(*(one.disk.fetch(folder, without=without) for one in self._members))
        for rank, (member, path) in enumerate(zip(self._members, paths, strict=True)):
            if path != paths[0]:
                await _tell_found(rank, member, FoundFolder(leaders=str(paths[0]), own=str(path)))
        return paths[0]

    def place(self, folder: Path) -> Path:
        return self._members[0].disk.place(folder)

    async def collect(self, folder: Path) -> None:
        await self._members[0].disk.collect(folder)


async def _tell_found(rank: int, member: RunningWorker, found: FoundFolder) -> None:
    headers = {"Authorization": f"Bearer {member.key}"}
    async with httpx.AsyncClient(headers=headers, trust_env=False, verify=no_tls()) as http:
        try:
            reply = await http.post(f"{member.url}/found", content=found.model_dump_json(), timeout=TELL_S)
            reply.raise_for_status()
        except httpx.HTTPError as error:
            raise WorkerError(f"rank {rank} could not be sent its folder: {error!r}") from error


async def _each(calls: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Makes all calls at the same time; the first error is raised when all have ended."""
    done = await asyncio.gather(*(call() for call in calls), return_exceptions=True)
    for one in done:
        if isinstance(one, BaseException):
            raise one
