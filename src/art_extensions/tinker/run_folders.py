"""Where the files of a run stand on this machine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from art.errors import ARTError
from art.server.tenancy import SEPARATOR
from art.wire.gradients import MadeStep
from art_extensions.tinker.art_server import PROJECT, ArtServer
from art_extensions.tinker.store import Run

_log = logging.getLogger(__name__)
_OF_TENANT = f"{SEPARATOR}{PROJECT}"
"""What the name of a tenant's project ends with, as the operator sees it."""


class RunFolders:
    """The folders of runs, those of tenants among them: the server names these to its operator alone."""

    def __init__(self, operator: str, server: Callable[[], ArtServer]) -> None:
        """operator: the owner that the operator is. server: gives that owner's server."""
        self._operator, self._server = operator, server
        self._of_tenants: dict[str, tuple[str, Path | None]] = {}
        """The model's name and its folder, by the run's id."""

    async def find(self, run: Run, made: MadeStep) -> Path | None:
        """The folder of the model; None where it is on another machine, or cannot be asked for."""
        if made.checkpoint_path is not None:
            return _here(Path(made.checkpoint_path).parents[1])
        if run.owner == self._operator:
            return None
        name, folder = self._of_tenants.get(run.run_id, (None, None))
        if name != run.name:  # a new run, or one that has loaded other weights
            try:
                models = await self._server().models()
            except ARTError as error:
                _log.warning("the folder of %s is not known: %s", run.name, error)
                return None
            # The name has the id of its session, and is nobody else's.
            found = [one for one in models if one.name == run.name and one.project.endswith(_OF_TENANT)]
            folders = [Path(one.checkpoint_dir).parent for one in found if one.checkpoint_dir is not None]
            folder = _here(folders[0]) if len(folders) == 1 else None
            self._of_tenants[run.run_id] = run.name, folder
        return folder

    def forget(self, run_id: str) -> None:
        """Forgets a run that is over."""
        self._of_tenants.pop(run_id, None)


def _here(folder: Path) -> Path | None:
    return folder if folder.is_dir() else None
