"""Checkpoints that running jobs read beside the newest: references and teachers. They are not deleted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class InUse:
    """Folders and how many jobs read each."""

    def __init__(self) -> None:
        self._folders: Counter[Path] = Counter()

    @contextmanager
    def reading(self, folder: str | None) -> Iterator[None]:
        """Inside, the folder is in use. None: none is."""
        if folder is None:
            yield
            return
        path = Path(folder).resolve()
        self._folders[path] += 1
        try:
            yield
        finally:
            self._folders[path] -= 1

    def __contains__(self, folder: Path) -> bool:
        return self._folders[folder.resolve()] > 0
