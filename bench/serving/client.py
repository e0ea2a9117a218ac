"""What `import art` costs, against starting Python at all and against the imports it saves."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from bench.rows import Row, write_rows

REPETITIONS = 15


def seconds(program: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return time.perf_counter() - begin


def medians(*programs: str) -> list[float]:
    """Median wall seconds of each program, run in turn so that a noisy moment meets all of them."""
    runs = [[seconds(program) for program in programs] for _ in range(REPETITIONS)]
    return [statistics.median(column) for column in zip(*runs, strict=True)]


def main() -> None:
    nothing, ours, names, peer = medians(
        "pass",
        "import art",
        "import art; art.TrainableModel, art.Trajectory, art.gather_trajectory_groups",
        "import torch",
    )
    allowed = nothing * 0.25 / 0.02
    write_rows(
        "client",
        [
            Row(name="import art", ours=ours, unit="s", goal=allowed, at_most=True),
            Row(
                name="import art and its names, against import torch",
                ours=names,
                peer=peer,
                unit="s",
                ratio=peer / names,
            ),
        ],
    )


if __name__ == "__main__":
    main()
