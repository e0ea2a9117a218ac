"""The pages of the runs as a server has them under a path: the extension of the kind `pages`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from art.errors import extra_needed
from art.process.imports import import_lock
from art_extensions.ui.access import LINK_SECONDS, GuardedPages, LinkAccess, Viewer
from art_extensions.ui.run_files import FILES, StoredRows


def mount_pages(
    data_dir: Path, path: str, proof_of: Callable[[str | None], bytes | None], stored: StoredRows | None
) -> ServerPages:
    """Returns the pages of a data folder. See `art.server.app.PagesOfRuns`."""
    return ServerPages(data_dir, LinkAccess(path=path, proof_of=proof_of), stored or FILES)


class ServerPages:
    """Links, and the pages that they open."""

    def __init__(self, data_dir: Path, access: LinkAccess, stored: StoredRows) -> None:
        self._data_dir, self._access, self._stored = data_dir, access, stored

    def link(self, tenant: str | None, prefix: str, host: str) -> tuple[str, float]:
        """Returns a path that opens one browser, and for how many seconds it does."""
        return self._access.link(Viewer(tenant, prefix), host), LINK_SECONDS

    def load(self) -> GuardedPages[LinkAccess]:
        """Returns the application. Slow. Raises: MissingExtraError."""
        with extra_needed("ui", "the pages of the runs"):
            with import_lock:
                from art_extensions.ui.app import mounted_pages

            return mounted_pages(self._data_dir, self._access, self._stored)
