"""Learning curves of eight algorithms on one task: five seeds each, mean and interval.

Tic-tac-toe against random play with art/nano-games, through the whole loop (one server, one model a run).
Every run has the same scenarios, number of games, learning rate and LoRA; only the algorithm differs. A
point is the share of games not lost among those that the step was trained on, so it is measured before the
step's update.

    python -m bench algorithms              all runs, docs/reference/algorithms.png and .json
    python -m bench algorithms grpo gspo    these only, nothing written but the table

The interval is Student's 95 % for the mean over seeds. One learning rate for all favours the algorithms that
suit it: these curves show that each learns, not which is best.
"""

from __future__ import annotations

import asyncio
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

import art
from art.environments import tasks

NAMES = ("grpo", "dr_grpo", "dapo", "cispo", "gspo", "sapo", "rloo", "reinforce++_baseline")
SEEDS = (0, 1, 2, 3, 4)
STEPS, GROUPS, GROUP_SIZE = 25, 8, 8
LEARNING_RATE = 4e-3
PARTS = {"dr_grpo": {"aggregation": {"kind": "constant", "length": 40}}}
"""What an algorithm cannot know of the task: a game's most sampled tokens."""
LAST = 5
"""Steps at the end whose mean the table shows."""
T_95 = {5: 2.776}
"""Student's t for 95 %, by number of runs."""
DOCS = Path(__file__).parents[2] / "docs" / "reference"


async def curve(backend: art.LocalBackend, name: str, seed: int) -> list[float]:
    """Share of games not lost, step by step."""
    task = tasks.find("tic-tac-toe")
    safe = name.replace("+", "p")
    model = art.TrainableModel(name=f"{safe}-{seed}", project="curves", base_model="art/nano-games")
    await model.register(backend)
    points = []
    for step in range(STEPS):
        groups = await art.gather_trajectory_groups(
            art.TrajectoryGroup(
                task.rollout(model, task.scenario(seed, step * GROUPS + index)) for _ in range(GROUP_SIZE)
            )
            for index in range(GROUPS)
        )
        rate = task.DEFAULTS.rate_at(step, steps=STEPS, learning_rate=LEARNING_RATE)
        algorithm = {"name": name, **PARTS.get(name, {})}
        await backend.train(model, groups, learning_rate=rate, algorithm=algorithm)
        points.append(statistics.mean(float(one.metrics["not_lost"]) for group in groups for one in group))
    return points


async def curves(names: Sequence[str]) -> dict[str, list[list[float]]]:
    """By algorithm: one curve per seed. Seeds are the outer loop, so that a part of the runs is fair too."""
    found: dict[str, list[list[float]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="art-curves-") as folder:
        async with art.LocalBackend(path=folder) as backend:
            for seed in SEEDS:
                for name in names:
                    found[name].append(await curve(backend, name, seed))
                    print(
                        f"{name}, seed {seed}: {found[name][-1][0]:.3f} -> {found[name][-1][-1]:.3f}",
                        flush=True,
                    )
    return found


def mean_and_interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half the width of its 95 % interval."""
    spread = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values), T_95[len(values)] * spread


def table(found: dict[str, list[list[float]]]) -> dict[str, dict[str, float]]:
    """By algorithm: the first step and the mean of the last steps, each with its interval."""
    rows = {}
    for name, runs in found.items():
        first = mean_and_interval([run[0] for run in runs])
        last = mean_and_interval([statistics.mean(run[-LAST:]) for run in runs])
        rows[name] = {"first": first[0], "first_half": first[1], "last": last[0], "last_half": last[1]}
    return rows


def show(rows: dict[str, dict[str, float]]) -> None:
    printed = Table(title=f"tic-tac-toe: games not lost, {len(SEEDS)} seeds, {STEPS} steps")
    for heading in ("algorithm", "first step", f"last {LAST} steps"):
        printed.add_column(heading)
    for name, row in rows.items():
        first = f"{row['first']:.1%} ± {row['first_half']:.1%}"
        printed.add_row(name, first, f"{row['last']:.1%} ± {row['last_half']:.1%}")
    Console().print(printed)


def draw(found: dict[str, list[list[float]]], path: Path) -> None:
    """One panel an algorithm: the mean over seeds and its interval."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5.5), layout="constrained")
    axes = figure.subplots(2, (len(found) + 1) // 2, sharex=True, sharey=True).flatten()
    for axis, (name, runs) in zip(axes, found.items(), strict=False):
        steps = range(1, STEPS + 1)
        points = [mean_and_interval(column) for column in zip(*runs, strict=True)]
        low, high = [m - half for m, half in points], [m + half for m, half in points]
        axis.fill_between(steps, low, high, alpha=0.25)
        axis.plot(steps, [m for m, _ in points])
        axis.set_title(name, fontsize=10)
        axis.grid(alpha=0.3)
    figure.supxlabel("training step")
    figure.supylabel("games not lost")
    figure.savefig(path, dpi=110)


def main(names: Sequence[str]) -> int:
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        print(f"unknown algorithm {unknown[0]!r}; known: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    found = asyncio.run(curves(names or NAMES))
    rows = table(found)
    show(rows)
    if not names:
        draw(found, DOCS / "algorithms.png")
        setting = {"steps": STEPS, "groups": GROUPS, "group_size": GROUP_SIZE, "learning_rate": LEARNING_RATE}
        text = json.dumps({"setting": setting, "table": rows, "curves": found}, indent=1)
        (DOCS / "algorithms.json").write_text(text + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
