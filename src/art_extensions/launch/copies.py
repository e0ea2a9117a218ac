"""What comes home from a box: the newest checkpoint of each model, checked, and the server's logs.

A box is gone with its disk. What has come home by then stays.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from art.client.http.connection import ServerConnection, named_path
from art.client.storage.checkpoint_download import fetch_checkpoint
from art.errors import ARTError
from art.tracking.folders import ModelPaths
from art.wire.models import ModelList
from art_extensions.launch.task import DATA
from art_extensions.launch.tunnel import BoxShell

EVERY_S = 60.0
LIST_S = 30.0
_log = logging.getLogger(__name__)


class HomeCopies:
    """Copies of a box's checkpoints under `path`, at the places of `LocalBackend`, and of its logs."""

    def __init__(self, connection: ServerConnection, shell: BoxShell, path: Path) -> None:
        self._connection, self._shell, self._path = connection, shell, path
        self._steps: dict[str, int] = {}
        self._copying = asyncio.Lock()

    @property
    def logs(self) -> Path:
        """Returns the folder of the server's logs on this machine."""
        return self._path / "boxes" / self._shell.box / "logs"

    async def bring(self) -> None:
        """Brings what is new. Raises ARTError for what did not come."""
        async with self._copying:
            listed = await self._connection.call("GET", "/art/models", ModelList, deadline_s=LIST_S)
            for model in listed.models:
                newest = max(model.checkpoints, default=0)
                if newest > self._steps.get(model.key, 0):
                    await self._fetch(model.project, model.name, newest)
                    self._steps[model.key] = newest
            await self._shell.copy_folder(f"{DATA}/server/logs", self.logs)

    async def _fetch(self, project: str, name: str, step: int) -> None:
        checkpoints = ModelPaths(self._path / project / "models" / name).checkpoints
        folder = await fetch_checkpoint(
            self._connection, named_path(project, name), step, lambda found: checkpoints / f"{found:04d}"
        )
        _log.info("step %d of %s/%s is in %s", step, project, name, folder)

    async def bring_often(self, every_s: float) -> None:
        """Brings what is new, again and again, until it is cancelled. A failure is logged and tried again."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await self.bring()
            except ARTError as error:
                _log.warning("not everything came home from box %s: %s", self._shell.box, error)
