"""A hundredth of the two soaks of `bench.soak`: the same looks at real processes, with bounds that hold where
the machine is busy. No time of the clock is asserted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest
from bench.soak.findings import Soak, findings_of
from bench.soak.flatness import warm_looks
from bench.soak.points import Point, read_points, stretches_of
from bench.soak.requests import KEEP_STEPS, run_requests
from bench.soak.steps import run_steps
from bench.soak.tables import REQUESTS, STEPS
from bench.soak.views import measure_views

from core_speed import slowness
from waiting import DEADLINE_S

ROOT = Path(__file__).parents[2]
POOLED = 8
"""Threads and descriptors that a process may open in its first minutes: pools that are not full yet."""
JOURNALLED = {"disk: ledger", "disk: jobs"}
"""Files that grow when their journal is merged into them, in jumps; the samples in the ledger are counted."""
BUSY_S = 1800
"""A minute of a core, where forty others want it."""
STARTS_WITH, OF_A_STEP = 256, 64
"""Samples that `bench.serving.served` draws before the first request, and for a step."""
LATE_STEPS = 4
"""Samples are removed beside the requests, as the machine finds time: a busy one is some steps behind."""
VIEW_SECONDS = 5.0
"""Of CPU where `core_speed` was measured, imports included."""


def check(points: Sequence[Point], soak: Soak) -> None:
    """Nothing is shown to leak, everything that has a limit is within it, and no rate rises with the run."""
    found = {one.name: one for one in findings_of(points, soak)}
    exact = [
        name
        for name in found
        if name == "processes" or name.endswith(": memory") or name.startswith("disk: ")
        if name not in JOURNALLED
    ]
    assert len(exact) >= 10
    refuted = [found[name].line() for name in exact if found[name].met is False]
    assert not refuted, refuted
    for process in points[-1].processes:
        for figure in ("descriptors", "threads"):
            (seen,) = stretches_of([one for one in points if one.start == points[-1].start], process, figure)
            counts = [count for _, count in warm_looks(seen)]
            assert counts[-1] <= counts[0] + POOLED, (process, figure, counts)
        early, late = reading_rates(points, process)
        assert late <= 1.5 * early + 50_000, (process, early, late)
    most = VIEW_SECONDS * slowness()
    assert points[-1].views and all(0 <= spent < most for spent in points[-1].views.values())


def reading_rates(points: Sequence[Point], process: str) -> tuple[float, float]:
    """Returns the bytes that a step or request reads in the two halves of the last start, without its first
    third, in which steps are not deleted yet. Medians: a look in which a journal is copied reads double.
    """
    seen = [(one.at, one.processes[process].read) for one in points if one.start == points[-1].start]
    rates = [(read - before) / (at - since) for (since, before), (at, read) in pairwise(seen)]
    rates = rates[len(rates) // 3 :]
    return median(rates[: len(rates) // 2]), median(rates[len(rates) // 2 :])


@pytest.mark.slow
@pytest.mark.timeout(BUSY_S)
def test_a_run_of_steps_stays_flat_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    records, folder = tmp_path / "records.jsonl", tmp_path / "soak"
    first = run_steps(folder / "steps", records, total=6, looks=3)
    assert [one.at for one in first] == [2, 4, 6]
    page = tmp_path / "page.md"
    page.write_text("<!-- soak-steps -->\n<!-- /soak-steps -->\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bench.soak", "steps", "--steps", "50", "--looks", "25"),
            *("--folder", str(folder), "--records", str(records), "--page", str(page)),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=10 * DEADLINE_S,
    )
    points = read_points(records, "steps")
    assert done.returncode in (0, 1), done.stderr
    assert [one.at for one in points] == list(range(2, 51, 2)), done.stderr
    assert [one.start for one in points] == [0] * 3 + [1] * 22
    check(points, replace(STEPS, memory_mb=200.0, kept=STEPS.kept + LATE_STEPS))
    assert f"| {points[-1].at} steps | first | last |" in page.read_text()
    assert run_steps(folder / "steps", records, total=50) == []


@pytest.mark.slow
@pytest.mark.timeout(BUSY_S)
def test_a_server_that_answers_thousands_of_requests_stays_flat(tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    looks = 16
    points = run_requests(tmp_path / "soak", records, total=2000, looks=looks)
    assert points[-1].at >= 2000 and read_points(records, "requests") == points
    drawn = points[0].at + OF_A_STEP
    kept = STARTS_WITH + (KEEP_STEPS + LATE_STEPS) * drawn
    assert 2 * kept < STARTS_WITH + looks * drawn, "where nothing is removed, it shows"
    check(points, replace(REQUESTS, memory_mb=1000.0, kept=kept))


@pytest.mark.slow
def test_pages_of_a_folder_without_runs_fail(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="art explain soak/agent"):
        measure_views(tmp_path, "soak", "agent")
