"""The whole loop against TRL: seconds until the same evaluation score, on the same task and model.

Both sides start from the shipped `art/nano-games` with a fresh LoRA (rank 16, alpha 32, all linear layers)
and make the same steps: the same scenarios in the same order, groups of the same size, sampling at
temperature 1, one AdamW update a step with the same learning rate, betas and clipping, float32. After every
second step 512 fresh attempts are evaluated with the same code of the task; the run ends at the first
evaluation that reaches the threshold. Evaluations are not on the clock. Start-up (imports, model, server) is
shown in rows of its own.

Ours is `bench/learning/our_learning.py`: `LocalBackend`, the `openai` client, `model.train`. TRL's is
`bench/trl/learn_worker.py`: `GRPOTrainer` with `transformers.generate`; for tic-tac-toe, whose games have
several turns, its `rollout_func`. TRL has no default number of threads for a CPU: it runs with one and with
two, and the faster counts. The sides take turns, one process tree at a time.

What still differs: we weigh a token by CISPO, TRL clips (on policy both are the plain policy gradient), and
TRL divides by the sample's standard deviation, we by the population's: a factor that Adam takes out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crosscheck import environment

from art.engine.nano_models import resolve
from art.environments import tasks
from bench.rows import Row, write_rows
from bench.trl.steps import ENVIRONMENT, SCRIPTS

ROOT = Path(__file__).parents[2]
EVALUATIONS, EVERY = 512, 2
LIMIT_SECONDS = 600.0
THREADS = (1, 2)
Pairs = list[tuple[float, float]]
"""One figure of both sides, per seed."""


@dataclass(frozen=True, kw_only=True)
class Race:
    """A task, and the mean reward at which a run is done."""

    task: str
    threshold: float
    learning_rate: float
    steps: int
    """At most."""
    turns: int
    seeds: tuple[int, ...]
    goal: float | None = None


RACES = (
    Race(
        task="yes-no-maybe",
        threshold=0.95,
        learning_rate=3e-3,
        steps=40,
        turns=1,
        seeds=(0, 1, 2),
        goal=5.0,
    ),
    Race(
        task="tic-tac-toe",
        threshold=0.75,
        learning_rate=4e-3,
        steps=50,
        turns=5,
        seeds=(0, 1),
        goal=5.0,
    ),
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """The last line that a side said."""

    step: int
    seconds: float
    startup: float
    reward: float


def job_of(race: Race, seed: int, folder: Path, *, threads: int) -> dict[str, Any]:
    defaults = tasks.find(race.task).DEFAULTS
    rates = [
        defaults.rate_at(step, steps=race.steps, learning_rate=race.learning_rate)
        for step in range(race.steps)
    ]
    return {
        "task": race.task,
        "model": str(resolve(defaults.base_model)),
        "seed": seed,
        "rates": rates,
        "groups": defaults.groups,
        "group_size": defaults.group_size,
        "max_tokens": defaults.max_tokens,
        "rank": 16,
        "alpha": 32,
        "betas": [0.9, 0.99],
        "turns": race.turns,
        "every": EVERY,
        "evaluations": EVALUATIONS,
        "threshold": race.threshold,
        "accumulate": 1,
        "threads": threads,
        "folder": str(folder / "data"),
    }


def run(command: list[str], job: dict[str, Any], folder: Path, **extra: str) -> Run:
    """One side. Raises SystemExit when it fails or never reaches the threshold."""
    folder.mkdir()
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    done = subprocess.run(
        [*command, str(path)],
        env=os.environ | extra,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    last = Run(**json.loads(lines[-1]))
    if last.reward < job["threshold"]:
        raise SystemExit(f"{' '.join(command)} did not reach {job['threshold']}:\n" + "\n".join(lines[-5:]))
    return last


def ours(race: Race, seed: int, folder: Path) -> Run:
    job = job_of(race, seed, folder, threads=1)
    return run([sys.executable, "-m", "bench.learning.our_learning"], job, folder)


def theirs(race: Race, seed: int, folder: Path, threads: int) -> Run:
    job = job_of(race, seed, folder, threads=threads)
    command = [str(environment.python("trl")), "-P", str(SCRIPTS / "learn_worker.py")]
    extra = {**ENVIRONMENT, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT / "src")}
    return run(command, job, folder, **extra)


def race_rows(race: Race, folder: Path) -> list[Row]:
    pairs: list[tuple[Run, Run]] = []
    threads: Sequence[int] = THREADS
    for seed in race.seeds:
        mine = ours(race, seed, folder / f"ours-{seed}")
        tried = {count: theirs(race, seed, folder / f"trl-{seed}-{count}", count) for count in threads}
        best = min(tried, key=lambda count: tried[count].seconds / tried[count].step)
        threads = (best,)
        pairs.append((mine, tried[best]))
    to_score = [(mine.seconds, other.seconds) for mine, other in pairs]
    starting = [(mine.startup, other.startup) for mine, other in pairs]
    steps = [(float(mine.step), float(other.step)) for mine, other in pairs]
    goal = f"until reward {race.threshold}"
    return [
        row(f"{race.task}: {goal}", to_score, goal=race.goal),
        row(f"{race.task}: {goal}, start-up included", summed(to_score, starting)),
        row(f"{race.task}: start-up", starting),
        row(f"{race.task}: steps {goal}", steps, unit="steps"),
    ]


def summed(some: Pairs, more: Pairs) -> Pairs:
    return [(a + c, b + d) for (a, b), (c, d) in zip(some, more, strict=True)]


def row(name: str, pairs: Pairs, goal: float | None = None, unit: str = "s") -> Row:
    """Medians of the seeds, and the median of their ratios."""
    return Row(
        name=name,
        ours=statistics.median(mine for mine, _ in pairs),
        peer=statistics.median(other for _, other in pairs),
        unit=unit,
        ratio=statistics.median(other / mine for mine, other in pairs),
        goal=goal,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.learning.end_to_end", description=__doc__)
    known = [race.task for race in RACES]
    parser.add_argument("--tasks", nargs="+", choices=known, default=known)
    chosen = parser.parse_args().tasks
    environment.python("trl")  # made before anything is timed
    with tempfile.TemporaryDirectory(prefix="art-bench-") as name:
        rows = []
        for race in (one for one in RACES if one.task in chosen):
            folder = Path(name) / race.task
            folder.mkdir()
            rows += race_rows(race, folder)
    write_rows("end_to_end", rows)


if __name__ == "__main__":
    main()
