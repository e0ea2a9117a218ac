"""The places of a step at which a replay kills its own process, as a power cut or an out-of-memory killer may
kill a trainer.

    before-gradient   the model is open
    during-gradient   half of the tokens of the first batch are forwarded
    after-gradient    the weights have moved in memory, nothing is written
    during-save       the tensors are in a hidden folder, its manifest is not
    before-commit     the hidden folder is whole; the rename that makes it the step is not done
    before-promote    the step is committed, and nobody serves it yet
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, Literal, get_args

from art.wire.models import MANIFEST_FILE

KillPlace = Literal[
    "before-gradient", "during-gradient", "after-gradient", "during-save", "before-commit", "before-promote"
]
PLACES: tuple[KillPlace, ...] = get_args(KillPlace)


class ReplayKiller:
    """Ends this process by SIGKILL where the step comes to one place; None: nowhere."""

    def __init__(self, place: KillPlace | None = None) -> None:
        self._place = place

    def reach(self, place: KillPlace) -> None:
        """Is called where the step is at a place."""
        if place == self._place:
            os.kill(os.getpid(), signal.SIGKILL)

    def forwarded(self, done: int, total: int) -> None:
        """Is called with the tokens of a batch that are forwarded, and with all of them."""
        if 2 * done >= total:
            self.reach("during-gradient")

    def watch_save(self, folder: Path) -> None:
        """Has the end come when a manifest is opened below the folder: the tensors are written by then."""
        if self._place != "during-save":
            return
        below = f"{folder}{os.sep}"

        def see(event: str, values: tuple[Any, ...]) -> None:
            if event != "open" or not isinstance(values[0], str):
                return
            if values[0].startswith(below) and values[0].endswith(MANIFEST_FILE):
                self.reach("during-save")

        sys.addaudithook(see)
