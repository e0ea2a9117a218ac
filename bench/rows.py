"""The rows that every benchmark writes: ours, the peer's, their ratio, and the goal it is held against."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Ours beside a peer, both measured in this run; `ratio` is oriented so that larger is better for us.

    goal: with a peer, the ratio aimed at; else the figure that `ours` must reach, or keep to if `at_most`.
    """

    name: str
    ours: float
    unit: str
    peer: float | None = None
    ratio: float | None = None
    goal: float | None = None
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        if self.ratio is not None:
            return self.ratio >= self.goal
        return self.ours <= self.goal if self.at_most else self.ours >= self.goal


def machine() -> str:
    """Names the machine as the tables do."""
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


def write_rows(bench: str, rows: Sequence[Row]) -> Path:
    """Write `bench/results/<bench>.json` and print the same as a table."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{bench}.json"
    path.write_text(json.dumps([{**asdict(row), "met": row.met} for row in rows], indent=1) + "\n")
    table = Table(title=f"{bench} ({platform.machine()}, Python {platform.python_version()})")
    for heading in ("name", "ours", "peer", "unit", "ratio", "goal", "met"):
        table.add_column(heading, justify="left" if heading in {"name", "unit"} else "right")
    for row in rows:
        goal = "" if row.goal is None else f"{'at most ' if row.at_most else ''}{row.goal:g}"
        met = {None: "", True: "yes", False: "no"}[row.met]
        peer = "" if row.peer is None else f"{row.peer:.4g}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        table.add_row(row.name, f"{row.ours:.4g}", peer, row.unit, ratio, goal, met)
    Console().print(table)
    return path
