"""Which samples of a client ended: what `POST /api/v1/retrieve_futures` tells, one poll for all.

A client says which cursor it has, and is told what ended since, with the next cursor. Cursors grow from
process to process, so one of an earlier process is before all of this one's.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from art_extensions.tinker.store import now

CLONE = 1_000_000_000
"""The numbers of a sampler's requests that each of its clients has: its own number is what is above."""


@dataclass(kw_only=True, slots=True, eq=False)
class EndedSamples:
    """The ended requests of one client of a sampler, the earliest first."""

    places: dict[str, int] = field(default_factory=dict)
    """Request -> its cursor."""
    newest: int = field(default_factory=lambda: int(now() * 1e6))
    is_polled: bool = False
    _more: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def unread(self) -> int:
        """The requests that ended since the cursor of a client that polls; 0 for one that does not."""
        return len(self.places) if self.is_polled else 0

    def put(self, request_id: str) -> None:
        """A request has ended."""
        self.newest += 1
        self.places.pop(request_id, None)
        self.places[request_id] = self.newest
        self._more.set()

    async def since(self, cursor: int, seconds: float) -> tuple[list[str], int]:
        """The requests after a cursor, and the next cursor: at once where there are some, else after so many
        seconds at most. Those up to the cursor are forgotten.
        """
        self.is_polled = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._later(cursor):
                    self._more.clear()
                    await self._more.wait()
        found = self._later(cursor)
        return found, max([cursor, *(self.places[one] for one in found)])

    def _later(self, cursor: int) -> list[str]:
        self.places = {one: place for one, place in self.places.items() if place > cursor}
        return list(self.places)


def client_of(request_id: str) -> tuple[str, int]:
    """The sampler of a request, and the number of its client."""
    sampler_id, _, number = request_id.rpartition(":")
    return sampler_id, int(number) // CLONE
