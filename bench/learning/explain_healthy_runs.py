"""Trains both quick start tasks with several seeds and prints what `art explain` finds: it should be nothing.

    python bench/learning/explain_healthy_runs.py --seeds 10 --folder /tmp/healthy

What the log of a run said while it trained counts too. A run that is there is not trained again. Exit code 1
when something is found. A run takes about a minute.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from art.tracking.folders import ModelPaths
from art.tracking.model_files import append_history_row, read_history
from art_extensions.ui.explain import RunWatch, explain, model_folder

TASKS = ("tic-tac-toe", "mail")


def main() -> int:
    parser = argparse.ArgumentParser(description="How often `art explain` finds something on healthy runs.")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    runs: dict[str, list[HealthyRun]] = {task: [] for task in TASKS}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for task in TASKS:
            folder = options.folder / f"{task}-{seed}"
            if not (folder / "result.json").exists():
                train(task, seed, folder)
            runs[task].append(HealthyRun.read(folder))
            print("\n".join(runs[task][-1].lines), flush=True)
    print("| task | runs | steps | reward, first -> last three steps | found | reported meanwhile | a step |")
    print("|---|---|---|---|---|---|---|")
    for task, some in runs.items():
        print(row_of(task, some))
    return 1 if any(one.found or one.reported for some in runs.values() for one in some) else 0


@dataclass(frozen=True)
class HealthyRun:
    """What was found in a run, and what its watch costs."""

    steps: int
    found: int
    reported: int
    rewards: tuple[float, float]
    """The means of its first and of its last three steps."""
    watch_ms: float
    """Of a core, a step."""
    lines: list[str]

    @classmethod
    def read(cls, run: Path) -> HealthyRun:
        folder = model_folder(str(run), run)
        explanation = explain(str(run))
        reported = list(read_history(ModelPaths(folder).findings))
        rows = list(read_history(ModelPaths(folder).history))
        rewards = [row["train/reward"] for row in rows if "train/reward" in row]
        lines = [explanation.text(), *(f"reported at step {one['step']}: {one['words']}" for one in reported)]
        watch, seconds = RunWatch(), 0.0
        with tempfile.TemporaryDirectory() as root:
            again = Path(root, "project", "models", "again")
            for row in rows:
                append_history_row(ModelPaths(again).history, row)
                begin = time.thread_time()
                watch.see(again, row)
                seconds += time.thread_time() - begin
        return cls(
            explanation.steps, len(explanation.findings), len(reported),
            (fmean(rewards[:3]), fmean(rewards[-3:])), 1000 * seconds / len(rows), lines,
        )  # fmt: skip


def row_of(task: str, runs: list[HealthyRun]) -> str:
    """Returns a task's row of the table."""
    first, last = ([one.rewards[at] for one in runs] for at in (0, 1))
    cells = (
        task, len(runs), runs[0].steps,
        f"{min(first):.2f} to {max(first):.2f} -> {min(last):.2f} to {max(last):.2f}",
        sum(one.found > 0 for one in runs), sum(one.reported > 0 for one in runs),
        f"{fmean(one.watch_ms for one in runs):.2f} ms",
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def train(task: str, seed: int, folder: Path) -> None:
    command = [str(Path(sys.executable).with_name("art")), "quickstart", task, "--seed", str(seed)]
    command += ["--output", str(folder), "--eval-rollouts", "40"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
