"""The ranks of one trainer: how they speak to each other, agree on errors, and notice that one is gone.

Rank 0 is the leader: it answers the server and tells the others what to do. Everything that is said is JSON,
bytes or numbers; nothing is pickled. Each collective has a deadline. One that fails ends the group: its ranks
are started again together.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from art import errors
from art.errors import ARTError, ServerError, TrainingError, WorkerDiedError, WorkerError
from art.training.device_memory import is_out_of_memory

IDLE = timedelta(days=365)
"""Followers wait so long for the next command: a trainer may have nothing to do. A dead leader ends it."""
ASKING = timedelta(seconds=5)
"""The time for the store to say which rank is missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Links:
    """The connections of one rank. `tensors`: of numbers on the device; `words`: of bytes; `idle`: of the
    announcement of a command, for which a follower waits without end.
    """

    store: dist.Store
    tensors: dist.ProcessGroup
    words: dist.ProcessGroup
    idle: dist.ProcessGroup
    deadline: float
    """Seconds of one collective."""
    when_lost: Callable[[WorkerError], None]
    """Is called with the error when the group cannot go on."""


class RankGroup:
    """One process's place among the ranks. Without links it is alone, and every method does nothing."""

    def __init__(self, rank: int = 0, world: int = 1, links: Links | None = None) -> None:
        self.rank, self.world = rank, world
        self.found: dict[str, str] = {}
        """Folders by their paths on the leader's machine: where this one has them, if elsewhere."""
        self._links = links
        self._collectives = 0

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    @property
    def tensors(self) -> dist.ProcessGroup:
        """The group that numbers on the device are exchanged in."""
        assert self._links is not None, "one rank exchanges nothing"
        return self._links.tensors

    def agree(self) -> AbstractContextManager[object]:
        """A block that succeeds on all ranks, or raises the same error on all. Within it, ranks exchange
        nothing.

        Where ranks fail in different ways, the error of the first is raised everywhere, with its number; an
        error comes before an end of memory, which may be tried again.
        """
        return nullcontext() if self.world == 1 else Agreement(self)

    def sum_in_place(self, tensors: Iterable[torch.Tensor]) -> None:
        """Replaces each tensor by its sum over the ranks, bit for bit the same on all.

        Raises WorkerDiedError, naming the ranks that are missing.
        """
        for tensor in tensors:
            if self._links is not None:
                with self._collective():
                    dist.all_reduce(tensor, group=self._links.tensors)

    def gather(self, word: Any) -> list[Any]:
        """Returns what each rank says, in their order. `word` can be written as JSON."""
        if self._links is None:
            return [word]
        mine, words = _as_bytes(json.dumps(word).encode()), self._links.words
        sizes = [torch.zeros(1, dtype=torch.long) for _ in range(self.world)]
        with self._collective():
            dist.all_gather(sizes, torch.tensor([len(mine)]), group=words)
        room = torch.zeros(max(int(size) for size in sizes), dtype=torch.uint8)
        room[: len(mine)] = mine
        parts = [torch.empty_like(room) for _ in range(self.world)]
        with self._collective():
            dist.all_gather(parts, room, group=words)
        return [
            json.loads(part[: int(size)].numpy().tobytes()) for part, size in zip(parts, sizes, strict=True)
        ]

    def announce(self, command: Any, body: bytes = b"") -> None:
        """Tells all followers, who wait in `next_command`."""
        if self._links is not None:
            head = json.dumps(command).encode()
            with self._collective():
                dist.broadcast(torch.tensor([len(head), len(body)]), 0, group=self._links.idle)
            with self._collective():
                dist.broadcast(_as_bytes(head + body), 0, group=self._links.words)

    def next_command(self) -> tuple[Any, bytes]:
        """Returns what the leader announces next, however long that takes. Raises WorkerDiedError when the
        leader is gone.
        """
        assert self._links is not None, "one rank follows nobody"
        sizes = torch.zeros(2, dtype=torch.long)
        with self._collective():
            dist.broadcast(sizes, 0, group=self._links.idle)
        head, body = (int(size) for size in sizes)
        room = torch.empty(head + body, dtype=torch.uint8)
        with self._collective():
            dist.broadcast(room, 0, group=self._links.words)
        said = room.numpy().tobytes()
        return json.loads(said[:head]), said[head:]

    def end(self, error: WorkerError) -> WorkerError:
        """Returns the error, for which the ranks are to be started again."""
        if self._links is not None:
            self._links.when_lost(error)
        return error

    def missing(self) -> list[int]:
        """The ranks that have not come as far as this one. The leader keeps the list: without an answer it is
        the leader.
        """
        assert self._links is not None
        behind = []
        for rank in range(self.world):
            key = _arrivals(rank)
            try:
                self._links.store.wait([key], ASKING)
                reached = int(self._links.store.get(key))
            except RuntimeError:  # the store is gone with its process, or the rank never came
                return [0] if self.rank else [rank]
            if reached < self._collectives:
                behind.append(rank)
        return behind

    def _collective(self) -> _Collective:
        return _Collective(self)

    def _arrive(self) -> None:
        assert self._links is not None
        self._collectives += 1
        self._links.store.set(_arrivals(self.rank), str(self._collectives))

    def _fail(self, error: RuntimeError) -> WorkerDiedError:
        assert self._links is not None
        behind = ", ".join(str(rank) for rank in self.missing())
        who = f"rank {behind} did not come" if behind else "the connection to another rank broke"
        first = (str(error).strip().splitlines() or [""])[0]
        lost = WorkerDiedError(
            f"rank {self.rank} of {self.world} could not go on: {who} to collective {self._collectives} "
            f"within {self._links.deadline:g} s ({first[:200]})"
        )
        self._links.when_lost(lost)
        return lost


class _Collective:
    """One exchange: its arrival is noted, its failure says who is missing."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group

    def __enter__(self) -> None:
        try:
            self._group._arrive()
        except RuntimeError as error:
            raise self._group._fail(error) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, RuntimeError):
            raise self._group._fail(error) from error


class Agreement:
    """See `RankGroup.agree`."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, WorkerError) or not (error is None or isinstance(error, Exception)):
            return  # the group is at its end, or this process: there is nothing to agree on
        reports: list[dict[str, Any] | None] = self._group.gather(_describe(error))
        failed = {rank: one for rank, one in enumerate(reports) if one is not None}
        if not failed:
            return
        rank = min(failed, key=lambda rank: (failed[rank]["memory"], rank))
        first = failed[rank]
        if error is not None and reports[self._group.rank] == first:
            return  # it is this rank's own
        same = len(failed) == self._group.world and all(one == first for one in reports)
        raise _rebuild(first, None if same else rank) from error


def _describe(error: BaseException | None) -> dict[str, Any] | None:
    if error is None:
        return None
    lines = str(error).strip().splitlines() or [""]
    memory = is_out_of_memory(error)
    return {
        "kind": type(error).__name__,
        "message": lines[0] if memory else "\n".join(lines),
        "memory": memory,
        "code": getattr(error, "code", None),
        "status": getattr(error, "status", None),
    }


def _rebuild(fault: dict[str, Any], rank: int | None) -> Exception:
    """The error of another rank."""
    where = "" if rank is None else f" (rank {rank})"
    message = f"{fault['message']}{where}"
    if fault["memory"]:
        return torch.OutOfMemoryError(f"out of memory: {message}")
    kind = getattr(errors, fault["kind"], None)
    if not (isinstance(kind, type) and issubclass(kind, ARTError)):
        return TrainingError(f"{fault['kind']}: {message}")
    if issubclass(kind, ServerError):
        return kind(message, status=fault["status"] or 500, code=fault["code"])
    return kind(message)


def _arrivals(rank: int) -> str:
    return f"arrived/{rank}"


def _as_bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8)[: len(data)]


def open_store(host: str, port: int = 0, *, deadline: float, leader: bool) -> dist.TCPStore:
    """The place where ranks meet. The leader opens it, at any free port, and waits for nobody; whoever
    reaches it can disturb the ranks, so it listens on this address alone.

    Raises WorkerDiedError when a follower finds no leader there.
    """
    patience = timedelta(seconds=deadline)
    try:
        if not leader:
            return dist.TCPStore(host, port, is_master=False, timeout=patience)
        # torch itself would listen on every address of the machine.
        listener = socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=256
        )
        return dist.TCPStore(
            host,
            listener.getsockname()[1],
            is_master=True,
            wait_for_workers=False,
            timeout=patience,
            master_listen_fd=listener.detach(),
        )
    except RuntimeError as error:
        raise WorkerDiedError(f"the ranks' meeting place at {host}:{port} cannot be used: {error}") from error


def join_ranks(
    store: dist.Store,
    rank: int,
    world: int,
    *,
    host: str,
    device: torch.device,
    deadline: float,
    when_lost: Callable[[WorkerError], None] = lambda error: None,
) -> RankGroup:
    """Waits for all ranks and connects them. host: this rank's address, which the others reach. deadline:
    seconds, of this and of each collective. when_lost: told when a collective failed.

    Raises WorkerDiedError when a rank does not come.
    """
    patience = timedelta(seconds=deadline)
    try:
        dist.init_process_group(
            "gloo",
            store=store,
            rank=rank,
            world_size=world,
            timeout=patience,
            pg_options=_gloo(host, patience),
        )
        words = dist.distributed_c10d._get_default_group()
        tensors = words if device.type == "cpu" else _nccl(device, patience)
        idle = dist.new_group(backend="gloo", timeout=IDLE, pg_options=_gloo(host, IDLE))
    except RuntimeError as error:
        raise WorkerDiedError(f"rank {rank} of {world} did not find the others: {error}") from error
    links = Links(
        store=store, tensors=tensors, words=words, idle=idle, deadline=deadline, when_lost=when_lost
    )
    return RankGroup(rank, world, links)


def _gloo(host: str, patience: timedelta) -> Any:
    """Options that bind to one address: gloo would take that of the machine's name."""
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = patience
    return options


def _nccl(device: torch.device, patience: timedelta) -> dist.ProcessGroup:
    torch.cuda.set_device(device)
    group: dist.ProcessGroup = dist.new_group(backend="nccl", timeout=patience, device_id=device)
    return group
