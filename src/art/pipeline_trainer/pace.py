"""How far rollouts may run ahead of the trainer.

A group that starts now is trained when the groups before it are: `ahead` groups that were started and that
the trainer has not taken make `ahead // batch` steps, and one more if the trainer is at work. Groups that
would come later than `most_steps` are not started yet: they would be sampled only to become stale.
"""

from __future__ import annotations

import asyncio


class Pace:
    """Counts groups between the stream and the trainer. One event loop owns it."""

    def __init__(self, *, batch: int, most_steps: int) -> None:
        self._batch, self._most_steps = batch, most_steps
        self._ahead = 0
        self._busy = self._stopped = False
        self._changed = asyncio.Event()

    @property
    def ahead(self) -> int:
        """Groups that were started and not taken."""
        return self._ahead

    def has_room(self) -> bool:
        """Whether a group that starts now can be trained in time."""
        steps = self._most_steps + (not self._busy)
        return self._ahead < self._batch * steps

    async def start(self) -> bool:
        """Wait until a group may start. False: none starts any more."""
        while not self._stopped and not self.has_room():
            await self._changed.wait()
        self._ahead += not self._stopped
        return not self._stopped

    def taken(self, groups: int = 1) -> None:
        """The trainer has so many groups more, or they came to nothing."""
        self._ahead -= groups
        self._tell()

    def train(self, busy: bool) -> None:
        """The trainer is at work, or no longer."""
        self._busy = busy
        self._tell()

    def stop(self) -> None:
        """No group starts any more."""
        self._stopped = True
        self._tell()

    @property
    def stopped(self) -> bool:
        return self._stopped

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
