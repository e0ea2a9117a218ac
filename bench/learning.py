"""What the quick start achieves: three seeds of tic-tac-toe and of the mail agent, through the real command.

Each row holds a run against the figure that it must reach: a share of fresh attempts, or seconds of wall time
(server start, both evaluations and training included).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.rows import Row, write_rows

SEEDS = (0, 1, 2)
TARGETS = {"tic-tac-toe": ("not_lost", 0.88), "mail": ("right", 0.90)}
SECONDS = 240.0


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
        Row(
            name=f"{name}: {metric} after",
            ours=after,
            peer=target,
            unit="share",
            ratio=after / target,
            goal=1.0,
        ),
        Row(
            name=f"{name}: wall time", ours=seconds, peer=SECONDS, unit="s", ratio=SECONDS / seconds, goal=1.0
        ),
    ]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="art-bench-") as name:
        runs = [(task, seed, quickstart(task, seed, Path(name))) for task in TARGETS for seed in SEEDS]
    write_rows("learning", [row for run in runs for row in rows_of(*run)])


if __name__ == "__main__":
    main()
