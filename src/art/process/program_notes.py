"""What a server tells the program that started it: lines of its log that go to the program's log as well.

_log.warning("...", extra=FOR_PROGRAM)      anywhere in the server
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType

FOR_PROGRAM: Mapping[str, object] = MappingProxyType({"art_for_program": True})
"""The `extra` of a record that the user must read, who does not look into the server's log."""


class ProgramNotes(logging.Handler):
    """Hands the text of each such record on, as one line of JSON."""

    def __init__(self, write_line: Callable[[dict[str, object]], None]) -> None:
        super().__init__()
        self._write_line = write_line

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "art_for_program", False):
            self._write_line({"note": record.getMessage()})


def read_note(line: bytes) -> str | None:
    """Returns the text that a line of `ProgramNotes` tells; None for any other line."""
    if not line.startswith(b'{"note"'):
        return None
    try:
        note = json.loads(line)["note"]
    except (ValueError, KeyError):
        return None
    return note if isinstance(note, str) else None
