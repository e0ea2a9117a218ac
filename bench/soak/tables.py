"""The tables of docs/internals/reliability.md, made of the records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.marked_pages import replace_between_marks
from bench.soak.findings import Soak, findings_of
from bench.soak.points import Point, read_points
from bench.soak.program import GROUPS, KEEP_STEPS, SIZE, TIDY_EVERY, TURNS

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "reliability.md"
STEPS = Soak(
    kind="steps",
    unit=1000,
    checkpoints=TIDY_EVERY + 2,
    tokens=KEEP_STEPS,
    samples=GROUPS * SIZE * TURNS * (1 + 1 / TIDY_EVERY),
    kept=KEEP_STEPS + TIDY_EVERY + 2,
)
REQUESTS = Soak(kind="requests", unit=100_000, checkpoints=2, tokens=KEEP_STEPS, samples=1.0, kept=0)
SOAKS = {one.kind: one for one in (STEPS, REQUESTS)}


def table_of(points: Sequence[Point], soak: Soak) -> str:
    """A line for each figure of one run, and where it was measured."""
    last, starts = points[-1], len({one.start for one in points})
    lines = [
        f"| {last.at:,} {soak.kind} | first | last | growth (95 %) | goal | |",
        "|---|---|---|---|---|---|",
        *(one.line() for one in findings_of(points, soak)),
        "",
        f"{', '.join(sorted({one.machine for one in points}))}, {last.when}, "
        f"{starts} {'start' if starts == 1 else 'starts'}, {len(points)} looks. Revisions: "
        f"{', '.join(dict.fromkeys(one.revision for one in points))}.",
        "",
    ]
    return "\n".join(lines)


def write_tables(records: Path, page: Path = PAGE) -> None:
    """Writes the table of each soak that has looks between its marks. Raises ValueError for missing marks."""
    for kind, soak in SOAKS.items():
        points = read_points(records, kind)
        if len(points) > 1:
            replace_between_marks(page, table_of(points, soak), name=f"soak-{kind}")
