"""The rows that every benchmark writes: ours, the peer's, their ratio, and the goal it is held against."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One comparison. `ratio` is oriented so that larger is better for us; `goal` is the ratio aimed at.

    A row without a peer measures ours against a fixed figure (`peer` holds that figure).
    """

    name: str
    ours: float
    peer: float
    unit: str
    ratio: float
    goal: float | None = None

    @property
    def met(self) -> bool | None:
        return None if self.goal is None else self.ratio >= self.goal


def write_rows(bench: str, rows: Sequence[Row]) -> Path:
    """Write `bench/results/<bench>.json` and print the same as a table."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{bench}.json"
    path.write_text(json.dumps([{**asdict(row), "met": row.met} for row in rows], indent=1) + "\n")
    table = Table(title=f"{bench} ({platform.machine()}, Python {platform.python_version()})")
    for heading in ("name", "ours", "peer", "unit", "ratio", "goal", "met"):
        table.add_column(heading, justify="left" if heading in {"name", "unit"} else "right")
    for row in rows:
        goal = "" if row.goal is None else f"{row.goal:g}"
        met = {None: "", True: "yes", False: "no"}[row.met]
        table.add_row(row.name, f"{row.ours:.4g}", f"{row.peer:.4g}", row.unit, f"{row.ratio:.2f}", goal, met)
    Console().print(table)
    return path
