"""Runs the matrix of faults, cell by cell, and writes the page of its results.

    make faults                                     all cells that have no record yet
    make faults ARGS="--shard 1/4"                  a quarter of them
    make faults ARGS="--only trainer/save/kill-9"   one cell, also one with a record; `*` stands for any name
    make faults ARGS="--random 20 --seed 1"         kills at random moments, until there were 20
    make faults ARGS=--list                         every cell, with its record or why it is left out

A cell is a whole run of a real server, engine and trainer, in one phase of which something fails. It holds
when the run ends with the weights of the undisturbed run, or by an error of `art.errors` within 60 seconds
and with these weights when the program is started again; when no process outlives it, no file is half
written, and each step was trained and logged once. A record is a line of `bench/records/faults.jsonl`, for a
cell that has ended: a command that was stopped goes on where it was. Root is needed for the disks.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench.faults.outcome import BOUND_S, Outcome, judge
from bench.faults.page import write_page
from bench.faults.random_kills import kill_at_random
from bench.faults.records import RANDOM_RECORDS, RECORDS, CellRecord, append_record, read_random, read_records
from bench.faults.setups import JudgeAddress, Setup, judge_server
from bench.faults.table import Cell, FaultTable, read_table
from bench.faults.trial import LIMIT_S, PAUSED_S, FinishedRun, Trial
from bench.learning.cell_runner import provenance

TRIES = 3
"""At a phase that was over before the fault came."""
SLOWER = 2.0
"""A run after a fault may take so many times what the undisturbed one took, beside the bound."""
HUNG = 5.0
"""A run that takes so many times what the undisturbed one took has hung, on a machine that is busy."""
_TESTS = Path(__file__).parents[2] / "tests"


class Matrix:
    """Runs cells, each in a folder of its own, beside one judge and one undisturbed run of each kind."""

    def __init__(self, folder: Path, address: JudgeAddress, *, keeps: bool = False) -> None:
        """keeps: the folders of the runs stay."""
        self._folder, self._judge, self._keeps = folder, address, keeps
        self._calm: dict[tuple[bool, bool, int], FinishedRun] = {}
        self._count = 0

    def undisturbed(self, setup: Setup) -> FinishedRun:
        """The run that all others of its kind are compared with. Raises RuntimeError when it fails."""
        if setup.computed not in self._calm:
            plain = Setup(mcp=setup.mcp, environment=setup.environment, ranks=setup.ranks)
            folder = self._make_folder("undisturbed")
            trial = Trial(None, plain, folder, self._judge)
            outcome = trial.run()
            if outcome.first.status != 0:
                raise RuntimeError(f"the undisturbed run fails: {outcome.first}")
            self._calm[setup.computed] = FinishedRun(path=trial.path, outcome=outcome)
        return self._calm[setup.computed]

    def run(self, cell: Cell) -> CellRecord:
        """Raises RuntimeError when the phase was missed again and again."""
        setup = Setup.of(cell)
        finished = self.undisturbed(setup)
        calm = finished.outcome
        for _ in range(TRIES):
            outcome = self._try(cell, setup, finished)
            if outcome.hit:
                break
        else:
            raise RuntimeError(f"{cell.name}: the phase was over {TRIES} times before the fault came")
        bound = BOUND_S + SLOWER * calm.first.seconds + (PAUSED_S if "30" in cell.fault else 0.0)
        verdict = judge(cell, outcome, calm, bound_s=bound)
        return CellRecord(
            cell=cell.name,
            ending=verdict.ending,
            flaws=verdict.flaws,
            seconds=outcome.first.seconds,
            **provenance(),
        )

    def _make_folder(self, name: str) -> Path:
        self._count += 1
        folder = self._folder / f"{self._count}-{name}"
        folder.mkdir()
        return folder

    def _try(self, cell: Cell, setup: Setup, finished: FinishedRun) -> Outcome:
        folder = self._make_folder(cell.name.replace("/", "-"))
        limit = max(LIMIT_S, HUNG * finished.outcome.first.seconds)
        try:
            return Trial(cell, setup, folder, self._judge, limit_s=limit, finished=finished).run()
        finally:
            if not self._keeps:
                shutil.rmtree(folder, ignore_errors=True)


def wanted_cells(table: FaultTable, options: argparse.Namespace, path: Path) -> list[Cell]:
    """Those named, or those of the shard that have no record. Raises ValueError for a wrong name or shard."""
    if options.only:
        return list(table.find(options.only))
    known = {} if options.again else read_records(path)
    number, _, count = options.shard.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise ValueError(f"--shard {options.shard!r} is not I/N with I from 1 to N")
    shard = table.runnable[int(number) - 1 :: int(count)]
    return [cell for cell in shard if cell.name not in known]


def list_cells(table: FaultTable, path: Path) -> None:
    known = read_records(path)
    for cell in table.cells:
        record = known.get(cell.name)
        if cell.why:
            told = f"left out{' (open)' if cell.is_open else ''}: {cell.why}"
        elif record is None:
            told = "not run yet"
        else:
            told = show(record)
        print(f"{cell.name:44} {told}")


def show(record: CellRecord) -> str:
    held = "holds" if record.holds else "FAILS: " + " | ".join(record.flaws)
    return f"{held}; {record.ending}, {record.seconds:.0f} s"


def run_cells(cells: Sequence[Cell], path: Path, matrix: Matrix) -> int:
    """Returns how many fail."""
    failed = 0
    for at, cell in enumerate(cells, 1):
        begun = time.monotonic()
        try:
            record = matrix.run(cell)
        except (RuntimeError, OSError) as error:
            print(f"[{at}/{len(cells)}] {cell.name}: not run: {error}", flush=True)
            failed += 1
            continue
        took = round(time.monotonic() - begun, 1)
        append_record(path, replace(record, took=took))
        failed += not record.holds
        print(f"[{at}/{len(cells)}] {cell.name}: {show(record)} (cell {took:.0f} s)", flush=True)
    return failed


def read_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--list", action="store_true", help="show the table and run nothing")
    parser.add_argument("--only", nargs="+", metavar="CELL", help="COMPONENT/PHASE/FAULT, `*` for any name")
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="every N-th cell, from the I-th on")
    parser.add_argument("--again", action="store_true", help="also cells that have a record")
    parser.add_argument("--random", type=int, metavar="N", help="N kills at random moments instead of cells")
    parser.add_argument("--seed", type=int, default=0, help="of the random kills")
    parser.add_argument("--page", action="store_true", help="write the page from the records and run nothing")
    parser.add_argument("--records", type=Path, default=RECORDS, help="default: %(default)s")
    parser.add_argument("--keep", type=Path, help="a new folder that the runs are left in")
    parser.add_argument(
        "--fresh", action="store_true", help="start each process as a new interpreter, not as a warm fork"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options, table = read_options(arguments), read_table()
    if options.list or options.page:
        if options.list:
            list_cells(table, options.records)
        else:
            write_page(table, read_records(options.records), read_random(RANDOM_RECORDS))
        return 0
    try:
        cells = [] if options.random else wanted_cells(table, options, options.records)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what runs ends with this
    if not options.fresh:
        sys.path.insert(0, str(_TESTS))
        import fork_server

        fork_server.install()
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="art-faults-")))
        folder.mkdir(parents=True, exist_ok=True)
        _, address = stack.enter_context(judge_server(folder))
        matrix = Matrix(folder, address, keeps=options.keep is not None)
        if options.random:
            calm = matrix.undisturbed(Setup()).outcome
            failed = kill_at_random(options.random, options.seed, folder, address, calm, RANDOM_RECORDS)
        else:
            failed = run_cells(cells, options.records, matrix)
    if options.records == RECORDS:
        write_page(table, read_records(RECORDS), read_random(RANDOM_RECORDS))
    return min(1, failed)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
