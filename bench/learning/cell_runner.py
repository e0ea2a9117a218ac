"""Runs the cells that have no record yet, each by its method, and appends each to its record as it ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

from bench.learning.cells import MODEL, Cell, Measured, Record, append_record, read_records
from bench.learning.example_programs import Example
from bench.learning.methods import run_on_art
from bench.learning.program_cells import run_program
from bench.rows import machine
from bench.trl.cell import run_trl


def run_cell(cell: Cell, model: str, folder: Path) -> Measured:
    """Runs a cell in an empty folder. Raises KeyError for an unknown method, and what the method raises."""
    if cell.method == "trl":
        return run_trl(cell, model, folder)
    if not Example.find(cell.task).cells:
        return run_program(cell, model, folder)
    return asyncio.run(run_on_art(cell, model, folder))


def revision() -> str:
    """Names the commit, with a plus where files differ from it."""
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )
    return told.stdout.strip() or "unknown"


class Provenance(TypedDict):
    """Where a record is from."""

    when: str
    machine: str
    revision: str


def provenance() -> Provenance:
    """Returns the day of now (UTC), this machine and this commit."""
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    return Provenance(when=day, machine=machine(), revision=revision())


Run = Callable[[Cell, str, Path], Measured]
"""Runs a cell of a model in an empty folder."""


def run_missing(
    cells: Iterable[Cell],
    path: Path,
    *,
    model: str = MODEL,
    run: Run | None = None,
    tell: Callable[[str], object] = sys.stderr.write,
) -> dict[Cell, Record]:
    """Runs the cells that have no record yet, appends each as it ends, and returns the records of all.

    run: None is `run_cell`. A cell that fails ends this call with its error; those before it
    are kept.
    """
    cells, run = list(cells), run or run_cell
    known = {one.cell.key(one.model): one for one in read_records(path)}
    for place, cell in enumerate(cells):
        if cell.key(model) in known:
            continue
        tell(f"{place + 1}/{len(cells)}: {cell.name}\n")
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="art-cell-") as folder:
            measured = run(cell, model, Path(folder))
        record = Record(
            cell=cell,
            model=model,
            measured=measured,
            **provenance(),
        )
        append_record(path, record)
        known[cell.key(model)] = record
        last, whole = measured.last, time.monotonic() - begin
        tell(
            f"  {last.mean:.3f} ({last.low:.3f} to {last.high:.3f}) after {last.seconds:.0f} s, "
            f"{last.step} steps, {last.tokens} tokens; {whole:.0f} s with evaluations\n"
        )
    return {cell: known[cell.key(model)] for cell in cells if cell.key(model) in known}
