"""Long runs: memory, descriptors, threads, disk, latency and pages over 5,000 steps or 1,000,000 requests.

    python -m bench.soak steps [--steps 5000]
    python -m bench.soak requests [--requests 1000000]
    python -m bench.soak tables

A soak that was stopped goes on where it was, from its folder and its looks in bench/records/soak.jsonl; its
processes are then new ones. With a new folder it begins anew. At its end the tables of
docs/internals/reliability.md are written, and the command fails where a goal is not met.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from bench.rows import RESULTS
from bench.soak.findings import findings_of
from bench.soak.points import LOOKS, RECORDS, read_points
from bench.soak.requests import run_requests
from bench.soak.steps import run_steps
from bench.soak.tables import PAGE, SOAKS, write_tables


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("steps", "requests", "tables"))
    parser.add_argument("--steps", type=int, default=5000, help="that the run has at its end (%(default)s)")
    parser.add_argument("--requests", type=int, default=1_000_000, help="the same (%(default)s)")
    parser.add_argument("--looks", type=int, default=LOOKS, help="of a whole run (%(default)s)")
    parser.add_argument("--folder", type=Path, default=RESULTS / "soak", help="of the runs (%(default)s)")
    parser.add_argument("--records", type=Path, default=RECORDS, help="the file of the looks (%(default)s)")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page of the tables (%(default)s)")
    given = parser.parse_args()
    if given.what == "steps":
        run_steps(given.folder / "steps", given.records, total=given.steps, looks=given.looks)
    elif given.what == "requests":
        run_requests(given.folder / "requests", given.records, total=given.requests, looks=given.looks)
    write_tables(given.records, given.page)
    if given.what == "tables":
        return 0
    return tell(given.what, given.records)


def tell(kind: str, records: Path) -> int:
    """Prints the figures of the newest run, and returns 1 where a goal is not met."""
    found = findings_of(read_points(records, kind), SOAKS[kind])
    for one in found:
        Console().print(one.line(), markup=False, soft_wrap=True)
    return int(any(one.met is False for one in found))


if __name__ == "__main__":
    raise SystemExit(main())
