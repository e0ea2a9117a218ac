"""A log of a graph's calls: JSON lines, one call a line. Nothing is pickled."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any


class FileLogger:
    """Appends calls to a file. Several threads may log."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()

    def log(self, name: str, entry: dict[str, Any]) -> None:
        """Write one line: `{"name": name, **entry}`. Raises TypeError for what JSON cannot hold."""
        line = json.dumps({"name": name, **entry}, ensure_ascii=False)
        with self._lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def load_logs(self) -> list[dict[str, Any]]:
        """All lines, in the order in which they were written; none without a file."""
        if not self.path.exists():
            return []
        with self.path.open(encoding="utf-8") as file:
            return [json.loads(line) for line in file]
