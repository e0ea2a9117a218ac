"""Writes the tables of docs/reference/faults.md: every cell of the matrix, from the table and the records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.faults.records import CellRecord, RandomRecord
from bench.faults.table import Cell, FaultTable
from bench.marked_pages import replace_between_marks

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "faults.md"
MOST_FLAW = 160
"""Characters of a flaw that the page shows."""


def write_page(
    table: FaultTable, records: Mapping[str, CellRecord], kills: Sequence[RandomRecord], page: Path = PAGE
) -> None:
    """Raises ValueError where the page lacks its marks."""
    replace_between_marks(page, tables(table, records, kills))


def tables(table: FaultTable, records: Mapping[str, CellRecord], kills: Sequence[RandomRecord]) -> str:
    """The counts, a table for each component, the reasons, the cells that fail, and the random kills."""
    whys = list(dict.fromkeys(cell.why for cell in table.cells if cell.why))
    numbers = {why: f"({at})" for at, why in enumerate(whys, 1)}
    lines = [*_counts(table, records), ""]
    for component in table.components:
        own = [cell for cell in table.cells if cell.component == component]
        lines += [f"### {component}", "", *_of_component(table, own, numbers, records), ""]
    lines += ["### Cells that are left out", ""]
    open_whys = {cell.why for cell in table.cells if cell.is_open}
    for why, number in numbers.items():
        lines.append(f"- {number} {why}{' (open)' if why in open_whys else ''}")
    lines += ["", "### Cells that fail", "", *_failures(table, records), ""]
    lines += ["### Kills at random moments", "", *_of_kills(kills), ""]
    return "\n".join(lines)


def _counts(table: FaultTable, records: Mapping[str, CellRecord]) -> Iterator[str]:
    run = [records[cell.name] for cell in table.runnable if cell.name in records]
    holding = sum(one.holds for one in run)
    yield (
        f"The product has {len(table.cells):,} cells. {len(table.runnable)} of them are to be run, "
        f"{len(run)} have been, and {holding} of these hold."
    )
    if run:
        days = sorted(one.when for one in run)
        machines = ", ".join(sorted({one.machine for one in run}))
        yield f"They were run from {days[0]} to {days[-1]} on a machine with {machines}."
        took = [one.took for one in run if one.took is not None]
        if len(took) == len(table.runnable):
            hours, longest = sum(took) / 3600, max(took)
            yield f"One after another they took {hours:.1f} hours, the longest {longest:.0f} seconds."


def _of_component(
    table: FaultTable, cells: Sequence[Cell], numbers: Mapping[str, str], records: Mapping[str, CellRecord]
) -> Iterator[str]:
    if len({cell.why for cell in cells}) == 1 and cells[0].why:
        yield f"All cells are left out: {numbers[cells[0].why]}."
        return
    yield f"| fault | {' | '.join(table.phases)} |"
    yield "|---" * (len(table.phases) + 1) + "|"
    for fault in table.faults:
        row = [_shown(cell, numbers, records) for cell in cells if cell.fault == fault]
        yield f"| {fault} | {' | '.join(row)} |"


def _shown(cell: Cell, numbers: Mapping[str, str], records: Mapping[str, CellRecord]) -> str:
    if cell.why:
        return numbers[cell.why]
    record = records.get(cell.name)
    if record is None:
        return "not run"
    if not record.holds:
        return f"**fails**, {record.seconds:.0f} s"
    ending = f"`{record.ending}`" if record.ending.endswith("Error") else record.ending
    return f"{ending}, {record.seconds:.0f} s"


def _failures(table: FaultTable, records: Mapping[str, CellRecord]) -> Iterator[str]:
    failing = [records[cell.name] for cell in table.runnable if cell.name in records]
    failing = [one for one in failing if not one.holds]
    if not failing:
        yield "None of those that were run."
    for one in failing:
        flaws = "; ".join(_plain(flaw) for flaw in one.flaws)
        yield f"- {one.cell}: {flaws}"


def _of_kills(kills: Sequence[RandomRecord]) -> Iterator[str]:
    if not kills:
        yield "None yet."
        return
    many = sum(sum(one.kills.values()) for one in kills)
    holding = sum(one.holds for one in kills)
    yield f"{many} kills in {len(kills)} runs; {holding} of these ended with the undisturbed run's weights."
    yield ""
    yield "| seed | kills | ending |"
    yield "|---|---|---|"
    for one in sorted(kills, key=lambda one: one.seed):
        which = ", ".join(f"{count} of the {kind}" for kind, count in one.kills.items())
        ending = one.ending if one.holds else "**fails**: " + "; ".join(_plain(flaw) for flaw in one.flaws)
        yield f"| {one.seed} | {which} | {ending}, {one.seconds:.0f} s |"


def _plain(flaw: str) -> str:
    shown = re.sub(r"[`|<>\s]+", " ", flaw)
    return f"`{shown[:MOST_FLAW]}`"
