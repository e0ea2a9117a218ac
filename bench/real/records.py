"""What was measured, one line of JSON a cell, so that a bench that was stopped goes on where it was.

A cell is measured once for each revision of the code; a working tree with changes counts as its commit.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from art.process.files import write_whole

RECORDS = Path(__file__).parent.parent / "records"
Measured = dict[str, float]
"""Figures by their names."""


def measured_once(path: Path, cell: str, measure: Callable[[], Measured]) -> Measured:
    """Returns the figures of a cell: from the record of this revision, or measured now and appended to it."""
    at = revision()
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for line in map(json.loads, lines):
        if (line["cell"], line["revision"]) == (cell, at):
            figures: Measured = line["measured"]
            return figures
    found = measure()
    record = {
        "cell": cell,
        "revision": at,
        "when": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": machine(),
        "measured": found,
    }
    write_whole(path, "\n".join([*lines, json.dumps(record)]) + "\n")
    return found


def revision() -> str:
    """Returns the short name of the commit."""
    told = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=RECORDS.parent, capture_output=True, text=True
    )
    return told.stdout.strip() or "unknown"


def machine() -> str:
    """Returns the kind of processor and the number of its cores that may be used."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{cores} cores, {names[0] if names else platform.processor() or platform.machine()}"
