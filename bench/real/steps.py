"""Our side of a step: the program of `bench.real.program` in a process of its own, quiet or beside loops."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from art.wire.jobs import STEP_PARTS, part_metric
from bench.real.records import Measured

ROOT = Path(__file__).parent.parent.parent
SECONDS = 1500.0
"""Longest run of a program."""
SHAPES = {"readme": (4, 8), "empty": (4, 8), "grpo": (8, 8)}
"""Groups and rollouts of each."""


def run_program(model: Path, task: str, steps: int, *, loops: int = 0) -> Measured:
    """The seconds of the registration, and the medians of all steps but the first."""
    groups, size = SHAPES[task]
    with tempfile.TemporaryDirectory(prefix="art-real-") as name, endless_loops(loops):
        job = Path(name) / "job.json"
        told = {"task": task, "steps": steps, "groups": groups, "size": size}
        job.write_text(json.dumps({"model": str(model), "folder": f"{name}/data", **told}))
        done = subprocess.run(
            [sys.executable, "-m", "bench.real.program", str(job)],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if not name.startswith("OMP_")},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    if done.returncode:
        raise SystemExit(f"the program failed:\n{done.stderr[-3000:]}")
    first, *rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {"registered": first["registered"], "registered_cpu": first["cpu"], **medians(rows[1:])}


def medians(rows: list[dict[str, Any]]) -> Measured:
    """Of each figure of the steps. `job`: seconds of a training job; `apart`: the share of the wall that is
    neither sampling nor gradient.
    """
    found = {name: statistics.median(row[name] for row in rows) for name in ("seconds", "gather", "cpu")}
    parts = {
        part: statistics.median(row["metrics"].get(part_metric(part), 0.0) for row in rows)
        for part in STEP_PARTS
    }
    job = sum(seconds for part, seconds in parts.items() if part not in ("client", "sampling"))
    apart = 1 - (parts["sampling"] + parts["gradient"]) / (sum(parts.values()) or 1.0)
    forwarded = statistics.median(row["metrics"].get("data/forwarded_tokens", 0.0) for row in rows)
    mb = max(row["mb"] for row in rows)
    return {**found, **parts, "job": job, "apart": apart, "forwarded": forwarded, "mb": mb}


@contextmanager
def endless_loops(count: int) -> Iterator[None]:
    """So many other programs that each want a core, inside the block."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()
