"""Models that no run trains any more. The trainer is told to forget them at once, and their files go with the
last saved weights and the last sampler of theirs.

What is to be freed is on disk from the end of its run on, so neither a failure nor a kill loses it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from art.errors import ARTError, NotFoundError
from art_extensions.tinker.art_server import ArtServer
from art_extensions.tinker.saved_weights import model_of
from art_extensions.tinker.store import Leftover, Run, Sampler, SavedCheckpoint, Tables, TinkerStore, now

_log = logging.getLogger(__name__)

FREE_S = 60.0
"""The longest time in seconds for one model."""
AGAIN_S = 60.0
"""How long a model that could not be freed is left alone."""


class Leftovers:
    """Frees what ended runs left. The server of an owner is None until the owner's key has been seen."""

    def __init__(self, store: TinkerStore, server_if_known: Callable[[str], ArtServer | None]) -> None:
        self._store, self._server_if_known = store, server_if_known
        self._busy: set[str] = set()
        self._not_before: dict[str, float] = {}

    async def free(self, **where: Any) -> None:
        """Frees those with these values. One that cannot be freed now stays for a later call."""
        for one, needed in await self._store.run(partial(_find_due, where=where)):
            server = self._server_if_known(one.owner)
            early = self._not_before.get(one.model, 0.0) > asyncio.get_running_loop().time()
            if server is None or early or one.model in self._busy:
                continue
            self._busy.add(one.model)
            try:
                async with asyncio.timeout(FREE_S):
                    await self._free(one, needed, server)
            except (ARTError, TimeoutError) as error:
                _log.warning("model %s was not freed, and will be: %s", one.model, error or "too slow")
                self._not_before[one.model] = asyncio.get_running_loop().time() + AGAIN_S
            else:
                self._not_before.pop(one.model, None)
            finally:
                self._busy.discard(one.model)

    async def _free(self, one: Leftover, needed: bool, server: ArtServer) -> None:
        try:
            if not one.released:
                await server.release(one.model)
            if not needed:
                await server.delete(one.model)
        except NotFoundError:
            _log.info("model %s is gone already", one.model)
            needed = False
        where = {"model": one.model}
        if needed:
            await self._store.run(lambda tables: tables.change(Leftover, where, released=True))
        else:
            await self._store.run(lambda tables: tables.delete(Leftover, **where))


def _find_due(tables: Tables, where: Mapping[str, Any]) -> list[tuple[Leftover, bool]]:
    """The ones with something left to do, and whether their files are needed."""
    sampled = {model_of(one.model) for one in tables.select(Sampler) if one.step is not None}
    needed = sampled | {one.model for one in tables.select(SavedCheckpoint)}
    left = [(one, one.model in needed) for one in tables.select(Leftover, **where)]
    return [(one, is_needed) for one, is_needed in left if not (one.released and is_needed)]


def leave(tables: Tables, *runs: Run) -> None:
    """Notes that the models that runs train so far are to be freed."""
    for run in runs:
        tables.add(Leftover(model=run.name, owner=run.owner, created_at=now()))
