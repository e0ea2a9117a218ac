"""Plants faults in a copy of the source, and says whether what guards the place finds them.

    make planted                                all that have no record yet
    make planted ARGS="--only fuzz/gguf"        one, also one with a record; `*` stands for any name
    make planted ARGS=--list                    every planted fault, with its record
    make planted ARGS=--page                    write the page from the records and run nothing

A fault is a check that is taken out, or an error that is let through: `planted.toml` has each as a text of
one file of `src` and the text in its place. It is planted in a copy of `src`, with which the fuzz target, the
test or the cell of the matrix runs that is to find it. Before, the same runs without the fault, and must find
nothing; of a cell, its record in `faults.jsonl` says that. A record is a line of
`bench/records/planted.jsonl`: a command that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.faults.planted_page import write_page
from bench.faults.planted_records import RECORDS, PlantedRecord, read_records
from bench.faults.records import RECORDS as CELLS
from bench.faults.records import append_record
from bench.faults.records import read_records as read_cells
from bench.learning.cell_runner import provenance

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("planted.toml")
FUZZ = "tests/promises/hostile/fuzz.py"
SEED = 1
CALM_S = 8.0
"""Seconds of a fuzz target without the fault."""
FUZZ_S = 60.0
"""Seconds of a fuzz target with it."""
LIMIT_S = 300.0
"""Seconds after which what runs is ended: a found input is made small first."""
LONGEST_REPORT = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class PlantedFault:
    """A fault, and what has to find it."""

    by: str
    """`fuzz/TARGET`, `test/PATH::NAME` or `cell/COMPONENT/PHASE/FAULT`."""
    what: str
    """The fault, in words."""
    file: str
    """Below `src`."""
    old: str
    new: str

    @property
    def kind(self) -> str:
        return self.by.partition("/")[0]

    def plant(self, source: Path) -> None:
        """Changes a copy of `src`. Raises ValueError where the text is not there exactly once."""
        path = source / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.by}: {self.file} has its text {text.count(self.old)} times, not once")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")

    def digest(self) -> dict[str, str]:
        """Returns what a record repeats: another fault is to be found anew."""
        return {"file": self.file, "old": self.old, "new": self.new}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What a run says: whether it found something, and its report in a line."""

    found: bool
    report: str


def read_table(path: Path = TABLE) -> list[PlantedFault]:
    """Returns the faults in the order of the file."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["planted"]
    return [PlantedFault(**row) for row in rows]


def command_of(fault: PlantedFault, folder: Path, *, calm: bool) -> list[str]:
    """Returns what is to find the fault."""
    name = fault.by.partition("/")[2]
    if fault.kind == "fuzz":
        seconds = CALM_S if calm else FUZZ_S
        return [sys.executable, FUZZ, "--targets", name, "--seconds", f"{seconds:g}", "--seed", str(SEED)]
    if fault.kind == "test":
        return [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", name]
    records = folder / "cell.jsonl"
    return [sys.executable, "-m", "bench.faults", "--only", name, "--records", str(records), "--fresh"]


def run(command: Sequence[str], source: Path, folder: Path) -> tuple[int | None, str]:
    """Runs a command with this source. Returns its exit status, None where it was ended at the limit; and its
    output. folder: for the inputs that a fuzz target finds.
    """
    variables = {
        **os.environ,
        "PYTHONPATH": f"{source}{os.pathsep}{ROOT}",
        "OMP_NUM_THREADS": "1",
        "ART_FUZZ_FOUND": str(folder / "found"),
    }
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            list(command), cwd=ROOT, env=variables, stdout=output, stderr=output, start_new_session=True
        )
        status: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(LIMIT_S)
        finally:
            if status is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        return status, output.read()


def finding_of(fault: PlantedFault, status: int | None, output: str) -> Finding:
    """Reads what a command said. Raises RuntimeError where it could not do its work."""
    if status is None:
        return Finding(found=False, report=f"no end within {LIMIT_S:.0f} s")
    if fault.kind == "fuzz":
        counted = re.search(r"^ *(\d+)  inputs, (\d) found$", output, flags=re.M)
        if counted is None:
            raise RuntimeError(output[-2000:])
        return Finding(found=counted[2] != "0", report=_error_in(output) or f"{counted[1]} inputs")
    if fault.kind == "test":
        if status not in (0, 1):
            raise RuntimeError(output[-2000:])
        failed = re.findall(r"^(?:FAILED|ERROR) (?:\S+) - (.*)$|^E +(.*)$", output, flags=re.M)
        return Finding(found=status == 1, report=(failed[-1][0] or failed[-1][1]) if failed else "passed")
    shown = re.findall(r"^\[1/1\] \S+: (.*)$", output, flags=re.M)
    if not shown or shown[0].startswith("not run"):
        raise RuntimeError(output[-2000:])
    return Finding(found=status == 1, report=shown[0])


def _error_in(output: str) -> str:
    """The last error of a traceback, without its notes."""
    lines = [line.strip(" |") for line in output.splitlines()]
    errors = [line for line in lines if re.match(r"[\w.]*([Ee]rror|Exception|Group)\b", line)]
    return errors[-1] if errors else ""


class PlantedRuns:
    """Runs faults one after another. What finds several is tried once without any of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._calm: dict[str, Finding] = {}

    def run(self, fault: PlantedFault) -> PlantedRecord:
        """Raises ValueError where the fault cannot be planted, RuntimeError where what is to find it fails
        without it.
        """
        begun = time.monotonic()
        source = self._copy()
        try:
            fault.plant(source)
            calm = self._calm_finding(fault)
            if calm.found:
                raise RuntimeError(f"{fault.by} finds something where nothing is planted: {calm.report}")
            seen = finding_of(fault, *run(command_of(fault, self._folder, calm=False), source, self._folder))
        finally:
            shutil.rmtree(source)
        return PlantedRecord(
            by=fault.by,
            what=fault.what,
            **fault.digest(),
            found=seen.found,
            report=seen.report.replace(str(ROOT), ".")[:LONGEST_REPORT],
            calm=calm.report[:LONGEST_REPORT],
            seconds=round(time.monotonic() - begun, 1),
            **provenance(),
        )

    def _copy(self) -> Path:
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        return Path(shutil.copytree(ROOT / "src", self._folder / "src", ignore=ignored))

    def _calm_finding(self, fault: PlantedFault) -> Finding:
        if fault.kind == "cell":
            record = read_cells(CELLS).get(fault.by.partition("/")[2])
            if record is None:
                raise RuntimeError(f"{fault.by} has no record without a fault: run `make faults` first")
            return Finding(found=not record.holds, report=record.ending)
        if fault.by not in self._calm:
            command = command_of(fault, self._folder, calm=True)
            self._calm[fault.by] = finding_of(fault, *run(command, ROOT / "src", self._folder))
        return self._calm[fault.by]


def wanted(
    faults: Sequence[PlantedFault], only: Sequence[str], known: Mapping[str, PlantedRecord]
) -> list[PlantedFault]:
    """Those named, or those without a record of the same change. Raises ValueError for a name of none."""
    if not only:
        return [one for one in faults if one.what not in known or not known[one.what].is_of(one.digest())]
    chosen = [one for one in faults if any(fnmatch.fnmatchcase(one.by, pattern) for pattern in only)]
    if not chosen:
        raise ValueError(f"--only {' '.join(only)} names no planted fault; --list shows them")
    return chosen


def read_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.faults.planted",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="BY", help="names, `*` for any")
    parser.add_argument("--list", action="store_true", help="show the table and run nothing")
    parser.add_argument("--page", action="store_true", help="write the page from the records and run nothing")
    parser.add_argument("--records", type=Path, default=RECORDS, help="default: %(default)s")
    return parser.parse_args(arguments)


def show(fault: PlantedFault, record: PlantedRecord | None) -> str:
    if record is None or not record.is_of(fault.digest()):
        return "not run yet"
    return f"{'found' if record.found else 'NOT FOUND'}, {record.seconds:.0f} s: {record.report}"


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: 1 where a fault was not found, or could not be tried."""
    options, faults = read_options(arguments), read_table()
    known = read_records(options.records)
    if options.list:
        for fault in faults:
            print(f"{fault.by:28} {fault.what}: {show(fault, known.get(fault.what))}")
    try:
        chosen = [] if options.list or options.page else wanted(faults, options.only, known)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    failed = 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what runs ends with this
    with tempfile.TemporaryDirectory(prefix="art-planted-") as folder:
        runs = PlantedRuns(Path(folder))
        for at, fault in enumerate(chosen, 1):
            try:
                record = runs.run(fault)
            except (RuntimeError, ValueError, OSError) as error:
                print(f"[{at}/{len(chosen)}] {fault.by}: not run: {error}", flush=True)
                failed += 1
                continue
            append_record(options.records, record)
            failed += not record.found
            print(f"[{at}/{len(chosen)}] {fault.by}: {show(fault, record)}", flush=True)
    if options.records == RECORDS and not options.list:
        write_page([one.what for one in faults], read_records(RECORDS))
    return min(1, failed)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
