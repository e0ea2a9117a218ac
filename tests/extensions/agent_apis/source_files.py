"""Which files of a source tree name something."""

from __future__ import annotations

import re
from pathlib import Path


def files_that_name(name: str, source: Path) -> set[str]:
    """Paths below `source` of the Python files with this word."""
    word = re.compile(rf"\b{name}\b")
    return {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if word.search(path.read_text(encoding="utf-8"))
    }
