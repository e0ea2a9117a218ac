"""Trains both quick start tasks with several seeds and prints what `art explain` finds: it should be nothing.

    python bench/explain_healthy_runs.py --seeds 10 --folder /tmp/healthy

What the log of a run said while it trained counts too. A run that is there is not trained again. Exit code 1
when something is found. A run takes about a minute.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from art.tracking.explain import explain, model_folder
from art.tracking.folders import ModelPaths
from art.tracking.model_files import read_history

TASKS = ("tic-tac-toe", "mail")


def main() -> int:
    parser = argparse.ArgumentParser(description="How often `art explain` finds something on healthy runs.")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    found = runs = 0
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for task in TASKS:
            folder = options.folder / f"{task}-{seed}"
            if not (folder / "result.json").exists():
                train(task, seed, folder)
            explanation = explain(str(folder))
            reported = list(read_history(ModelPaths(model_folder(str(folder), folder)).findings))
            lines = [f"reported at step {one['step']}: {one['words']}" for one in reported]
            print(explanation.text(), *lines, sep="\n", flush=True)
            found, runs = found + bool(explanation.findings or reported), runs + 1
    print(f"{found} of {runs} healthy runs have a finding")
    return 1 if found else 0


def train(task: str, seed: int, folder: Path) -> None:
    command = [str(Path(sys.executable).with_name("art")), "quickstart", task, "--seed", str(seed)]
    command += ["--output", str(folder), "--evaluation-games", "40"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
