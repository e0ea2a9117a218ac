"""The tables of cells (`cells.py`), made of committed records, and the command line of every bench of
cells.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean

from art.runs.comparison import Estimate
from bench.learning.cell_runner import run_missing
from bench.learning.cells import MODEL, RECORDS, Cell, Record, estimate_of, read_records
from bench.marked_pages import replace_between_marks, said
from bench.rows import Row, write_rows

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "benchmarks.md"
Way = tuple[str, str, str]
"""A task, a method and a variant: its cells differ by their seeds."""


def by_way(records: Iterable[Record]) -> dict[Way, list[Record]]:
    """Returns the records of each way, in the order of the first ones."""
    found: dict[Way, list[Record]] = {}
    for one in records:
        found.setdefault((one.cell.task, one.cell.method, one.cell.variant), []).append(one)
    return found


def score_of(records: Sequence[Record]) -> Estimate:
    """Returns the mean of the seeds' last scores, with the interval over scenarios: those of all seeds are
    the same, so each counts once.
    """
    columns = zip(*(one.measured.last.scores for one in records), strict=True)
    return estimate_of([fmean(column) for column in columns])


def mean_at(records: Sequence[Record], place: int) -> str:
    """Returns the mean score at an evaluation on the way, of the seeds that had it."""
    means = [one.measured.points[place].mean for one in records if len(one.measured.points) > place + 1]
    return f"{fmean(means):.2f}" if means else ""


def share(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def league_table(records: Sequence[Record]) -> str:
    """A line for each way, the best of a task first."""
    lines = [
        "| task | way | seeds | at a third | at two thirds | at the end (95 % interval) | steps "
        "| sampled tokens | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    ways = sorted(by_way(records).items(), key=lambda item: (item[0][0], -score_of(item[1]).mean))
    for (task, method, variant), seeds in ways:
        last = [one.measured.last for one in seeds]
        ends = [f"{fmean(getattr(one, name) for one in last):.0f}" for name in ("step", "tokens", "seconds")]
        way = f"{method}, {variant}" if variant else method
        told = [
            task,
            way,
            str(len(seeds)),
            mean_at(seeds, 0),
            mean_at(seeds, 1),
            said(score_of(seeds)),
            *ends,
        ]
        lines.append(f"| {' | '.join(told)} |")
    return "\n".join([*lines, "", measured_where(records), ""])


def skill_table(records: Sequence[Record]) -> str:
    """A line for each way, with what sampling, greedy decoding and eight tries find."""
    lines = [
        "| task | way | seeds | sampled (95 % interval) | greedy | pass@8 | seconds | note |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (task, method, variant), seeds in by_way(records).items():
        found = [one.measured for one in seeds]
        greedy = [one.greedy for one in found if one.greedy is not None]
        tries = [one.pass_at_8 for one in found if one.pass_at_8 is not None]
        told = [
            task,
            f"{method}, {variant}" if variant else method,
            str(len(seeds)),
            said(score_of(seeds)),
            share(fmean(greedy) if greedy else None),
            share(fmean(tries) if tries else None),
            f"{fmean(one.last.seconds for one in found):.0f}" if found[0].last.step else "",
            found[0].note,
        ]
        lines.append(f"| {' | '.join(told)} |")
    return "\n".join([*lines, "", measured_where(records), ""])


def measured_where(records: Sequence[Record]) -> str:
    """Says which model, machines and days the records are of."""
    models, machines, days = (
        sorted({getattr(one, name) for one in records}) for name in ("model", "machine", "when")
    )
    revisions = ", ".join(dict.fromkeys(one.revision for one in records))
    span = " to ".join(dict.fromkeys((days[0], days[-1])))
    return f"{', '.join(models)}. {', '.join(machines)}, {span}. Revisions: {revisions}."


def rows_of(records: Sequence[Record]) -> list[Row]:
    """A row for each way; the peer is the base of its task."""
    ways = by_way(records)
    bases = {task: score_of(seeds).mean for (task, method, _), seeds in ways.items() if method == "base"}
    return [
        Row(
            name=f"{task}: {method} {variant}".strip(),
            ours=score_of(seeds).mean,
            peer=bases.get(task),
            unit="share",
        )
        for (task, method, variant), seeds in ways.items()
    ]


def run_bench(
    name: str,
    cells: Callable[[str, Sequence[Record]], list[Cell]],
    table: Callable[[Sequence[Record]], str],
    *,
    about: str | None,
) -> None:
    """The command of a bench of cells: runs what is missing, and writes the table between the marks `name` of
    the page of benchmarks.

    cells: of a model and the records so far; asked again until they are all there.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m bench.{name}", description=about, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default=MODEL, help="the base (default: %(default)s)")
    parser.add_argument("--task", action="append", help="only this task")
    parser.add_argument("--records", type=Path, default=RECORDS / f"{name}.jsonl", help="their file")
    parser.add_argument("--tables", action="store_true", help="run nothing: write the table")
    given = parser.parse_args()
    while not given.tables:
        known = read_records(given.records)
        asked = [one for one in cells(given.model, known) if not given.task or one.task in given.task]
        run_missing(asked, given.records, model=given.model)
        if len(read_records(given.records)) == len(known):
            break
    if records := read_records(given.records):
        write_rows(name, rows_of(records))
        replace_between_marks(PAGE, table(records), name=name)
