"""The soak of steps: a run is trained by `bench.soak.program`, and looked at on the way."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

from bench.soak.disk import measure_disk
from bench.soak.points import LOOKS, Logbook, Point
from bench.soak.processes import look_at_family
from bench.soak.program import NAME, PROJECT
from bench.soak.views import measure_views

VIEWS_EVERY = 250
"""Steps between two openings of the pages; the last look opens them, too."""


def run_steps(folder: Path, records: Path, *, total: int, looks: int = LOOKS) -> list[Point]:
    """Trains until the run has `total` steps, and returns the looks of this start. Steps that are done
    already are not done again. Raises SystemExit where the program fails: its log is in the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data_dir, log = folder / "data", folder / "program.log"
    book = Logbook(records, "steps", folder)
    every = max(1, total // looks)
    command = [sys.executable, "-m", "bench.soak.program", "--path", str(data_dir), "--steps", str(total)]
    points: list[Point] = []
    seconds: list[float] = []
    with log.open("ab") as errors:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert child.stdin is not None and child.stdout is not None
        try:
            for line in child.stdout:
                done = json.loads(line)
                step = int(done["step"])
                seconds.append(done["seconds"])
                if step % every == 0 or step == total:
                    seen = look_at_family(child.pid)
                    opened = step % VIEWS_EVERY == 0 or step == total
                    points.append(
                        book.add(
                            step,
                            processes=seen,
                            disk=measure_disk(data_dir, PROJECT, NAME),
                            seconds=median(seconds),
                            views=measure_views(data_dir, PROJECT, NAME) if opened else {},
                        )
                    )
                    seconds = []
                child.stdin.write("\n")
                child.stdin.flush()
        finally:
            child.stdin.close()
            child.wait()
            child.stdout.close()
    if child.returncode:
        raise SystemExit(f"the program ended with {child.returncode}: see {log}")
    return points
