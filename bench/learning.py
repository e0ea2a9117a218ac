"""What is learned in three seeds: tic-tac-toe, mail (the quick start), yes-no-maybe (the example).

Each row holds a run against the figure that it must reach: a share of fresh attempts, a mean reward, or
seconds of wall time (server start and evaluations included).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.rows import Row, write_rows

SEEDS = (0, 1, 2)
TARGETS = {"tic-tac-toe": ("not_lost", 0.88), "mail": ("right", 0.90)}
SECONDS = 240.0
EXAMPLE = Path(__file__).parents[1] / "examples" / "yes_no_maybe.py"
MEAN_REWARD = 0.95
EXAMPLE_SECONDS = 120.0


def quickstart(task: str, seed: int, folder: Path) -> dict[str, Any]:
    """The result of one run of `art quickstart`."""
    art, result = Path(sys.executable).with_name("art"), folder / f"{task}-{seed}.json"
    command = [str(art), "quickstart", task, "--seed", str(seed), "--output", str(folder / f"{task}-{seed}")]
    subprocess.run([*command, "--json", str(result)], check=True, stdout=subprocess.DEVNULL)
    return json.loads(result.read_text())


def rows_of(task: str, seed: int, result: dict[str, Any]) -> list[Row]:
    metric, target = TARGETS[task]
    before, after, seconds = result["before"][metric], result["after"][metric], result["seconds"]
    name = f"{task}, seed {seed}"
    return [
        Row(name=f"{name}: {metric} before", ours=before, peer=target, unit="share", ratio=before / target),
        *reached(name, f"{metric} after", after, target, "share", seconds, SECONDS),
    ]


def reached(
    name: str, what: str, value: float, target: float, unit: str, seconds: float, limit: float
) -> list[Row]:
    """What a run reached, against its goal, and how long it took, against its limit."""
    return [
        Row(name=f"{name}: {what}", ours=value, peer=target, unit=unit, ratio=value / target, goal=1.0),
        Row(name=f"{name}: wall time", ours=seconds, peer=limit, unit="s", ratio=limit / seconds, goal=1.0),
    ]


def yes_no_maybe(seed: int, folder: Path) -> list[Row]:
    """One run of the example until a step's mean reward is high enough."""
    options = ["--seed", str(seed), "--target", str(MEAN_REWARD), "--path", str(folder / f"ynm-{seed}")]
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *options], check=True, capture_output=True, text=True
    )
    seconds = time.perf_counter() - begin
    reward = float(done.stdout.split()[-1])
    name = f"yes-no-maybe, seed {seed}"
    return reached(name, "mean reward", reward, MEAN_REWARD, "reward", seconds, EXAMPLE_SECONDS)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="art-bench-") as name:
        runs = [(task, seed, quickstart(task, seed, Path(name))) for task in TARGETS for seed in SEEDS]
        words = [row for seed in SEEDS for row in yes_no_maybe(seed, Path(name))]
    write_rows("learning", [row for run in runs for row in rows_of(*run)] + words)


if __name__ == "__main__":
    main()
