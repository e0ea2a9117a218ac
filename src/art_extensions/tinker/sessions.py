"""Who asks, and what belongs together: keys, sessions with their heartbeat, and their end."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from art.errors import ARTError, AuthenticationError, NotFoundError
from art_extensions.tinker.art_server import ArtServer
from art_extensions.tinker.leftovers import leave
from art_extensions.tinker.runs import TrainingRuns
from art_extensions.tinker.samples import SampleFutures
from art_extensions.tinker.store import (
    KeptLoss,
    OpenSample,
    Run,
    Sampler,
    SavedCheckpoint,
    Tables,
    TinkerSession,
    TinkerStore,
    now,
)

_log = logging.getLogger(__name__)

PREFIX = "tml-"
"""Tinker's client refuses keys that begin otherwise."""
SILENT_S = 45.0
"""A session whose client is not heard for so long has ended. The client speaks every ten seconds."""
LOOK_S = 5.0
RESULTS_S = 24 * 3600.0
"""How long the result of a training request stays."""
_CHECK_S = 60.0
_WRONG = f"the key is wrong: send the one that `art tinker` told, or {PREFIX!r} and a key of `art keys`"


@dataclass(kw_only=True, slots=True, eq=False)
class KeyRing:
    """The keys that were seen, and the server for each. A key is known inside by a digest, its owner."""

    own: str = field(repr=False)
    """The key of this service: it is the operator's."""
    connect: Callable[[str | None], ArtServer]
    """The server for a key of its own; None: for the operator."""
    servers: dict[str, ArtServer] = field(default_factory=dict)
    """The server for each owner whose key was seen since the start."""
    _checked: dict[str, float] = field(default_factory=dict)
    _known: dict[str, asyncio.Event] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._remember(owner_of(self.own), self.connect(None))

    async def owner(self, key: str) -> str:
        """The owner of a request's key. Raises AuthenticationError."""
        if hmac.compare_digest(key.encode(), self.own.encode()):
            return owner_of(self.own)
        if not key.startswith(PREFIX):
            raise AuthenticationError(_WRONG, status=401)
        owner = owner_of(key)
        if now() - self._checked.get(owner, 0.0) > _CHECK_S:
            server = self.connect(key.removeprefix(PREFIX))
            try:
                await server.served()
            except AuthenticationError as error:
                raise AuthenticationError(_WRONG, status=401) from error
            self._checked[owner] = now()
            self._remember(owner, server)
        return owner

    async def server(self, owner: str) -> ArtServer:
        """The server for an owner: after a restart, when the owner's key has been seen again."""
        await self._known.setdefault(owner, asyncio.Event()).wait()
        return self.servers[owner]

    def _remember(self, owner: str, server: ArtServer) -> None:
        self.servers[owner] = server
        self._known.setdefault(owner, asyncio.Event()).set()


def owner_of(key: str) -> str:
    """Returns what stands for a key in files and logs."""
    return hashlib.sha256(f"tinker owner {key}".encode()).hexdigest()[:24]


class Sessions:
    """The sessions of all owners."""

    def __init__(self, store: TinkerStore, runs: TrainingRuns, samples: SampleFutures) -> None:
        self._store, self._runs, self._samples = store, runs, samples

    async def start(self) -> None:
        """Sessions go on that an earlier process had; what it did not forget any more is forgotten."""

        def begin(tables: Tables) -> None:
            tables.change(TinkerSession, {"ended": None}, seen_at=now())
            tables.forget_ended()

        await self._store.run(begin)

    async def heartbeat(self, owner: str, session_id: str) -> None:
        """Raises NotFoundError for a session that is none, or has ended."""

        def beat(tables: Tables) -> int:
            return tables.change(
                TinkerSession, {"session_id": session_id, "owner": owner, "ended": None}, seen_at=now()
            )

        if not await self._store.run(beat):
            raise NotFoundError(f"no open session {session_id!r} of this key", status=404)

    async def end(self, session: TinkerSession, how: str, detail: str | None = None) -> None:
        """Ends a session; the first reason counts. What its runs hold is noted, and freed by the watch."""
        if await self._store.run(partial(_end, session=session, how=how, detail=detail)):
            self._samples.end_session(session.session_id)
            await self._runs.end_session(session.session_id)
            await self._store.run(partial(_forget, session_id=session.session_id))

    async def watch(self) -> None:
        """Ends silent sessions, and removes what is too old, until it is cancelled."""
        freeing: asyncio.Task[None] | None = None
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                try:
                    await self._look()
                except ARTError as error:
                    _log.warning("the look after sessions failed: %s", error)
                if freeing is None or freeing.done():  # a server that does not answer holds up no look
                    freeing = asyncio.create_task(self._free())
        finally:
            if freeing is not None:
                freeing.cancel()
                await asyncio.gather(freeing, return_exceptions=True)

    async def _look(self) -> None:
        silent = now() - SILENT_S
        open_ones = await self._store.run(lambda tables: tables.select(TinkerSession, ended=None))
        for session in open_ones:
            if session.seen_at < silent:
                _log.info("session %s is over: its client was not heard", session.session_id)
                await self.end(session, "expired")
        await self._store.run(_sweep)

    async def _free(self) -> None:
        try:
            await self._runs.leftovers.free()
        except ARTError as error:
            _log.warning("what ended sessions left could not be looked up: %s", error)


def _end(tables: Tables, session: TinkerSession, how: str, detail: str | None) -> bool:
    """Returns whether it had not ended before."""
    where = {"session_id": session.session_id, "ended": None}
    if not tables.change(TinkerSession, where, ended=how, detail=detail):
        return False
    leave(tables, *tables.select(Run, session_id=session.session_id))
    return True


def _forget(tables: Tables, session_id: str) -> None:
    tables.delete(Sampler, session_id=session_id)
    tables.delete(KeptLoss, session_id=session_id)
    tables.delete(OpenSample, session_id=session_id)


def _sweep(tables: Tables) -> None:
    tables.forget_results(now() - RESULTS_S)
    for one in tables.select(SavedCheckpoint):
        if one.expires_at is not None and one.expires_at <= now():
            tables.delete(SavedCheckpoint, path=one.path)
