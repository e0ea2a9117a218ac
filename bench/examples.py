"""The examples, each run to its end with several seeds: held-out scenarios before and after.

    python -m bench examples                                all of them with five seeds, one after another
    python -m bench.examples codenames art_e:ruler          one, and a variant of one
    python -m bench.examples --seeds 1 --again              seed 0 anew, where it was measured before
    python -m bench.examples --pages                        only the pages, from examples/*/results.json

Each run is its program, started as a user starts it, in an empty folder; the figures are read from the log
that it leaves. What was measured is kept in `results.json` beside the program, run by run, so that a bench
that was stopped goes on. The README beside it gets a chart and a table, docs/get-started/examples.md a line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Self

from art.runs.comparison import Estimate, t_975
from art.tracking.trajectory_log import LoggedSteps
from art.trajectories import TrajectoryGroup
from bench.cells import RECORDS, Record, read_records
from bench.rows import machine, write_rows

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
MOST_SECONDS = 3600
"""The deadline of one run. The machine may do other work."""
PLAIN = "plain"
"""The variant with the program's own defaults."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """One program and one way to call it, as `example.toml` beside it says."""

    folder: Path
    variant: str
    title: str
    learns: str
    """What the model learns, as the table of all examples says it."""
    metric: str
    """A metric of the held-out rollouts, or `reward`."""
    goal: float
    lower_is_better: bool = False
    minutes: float
    arguments: tuple[str, ...] = ()
    short: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """`arguments` and `gain` of the run in CI; `metric`, where another one shows more in so few steps;
    `resumes = false`, where another program shows that such a one goes on where it stopped.
    """
    references: str | None = None
    file: str | None = None
    """The program's name, where it is not the folder's."""
    notebook: Sequence[str] | bool = ()
    """Arguments with which the notebook runs; False: there is none."""
    cells: bool = False
    """Whether `bench.skills` measures it, and not this bench."""
    model: str | None = None
    """The name of the model whose evaluations count, with `{seed}`; needed where a run has several."""

    @classmethod
    def read(cls, folder: Path) -> list[Self]:
        """Returns the plain run of a folder and its variants, which take what they do not say from it."""
        told = tomllib.loads((folder / "example.toml").read_text(encoding="utf-8"))
        variants = told.pop("variants", {})
        rows = {PLAIN: told} | {name: told | given for name, given in variants.items()}
        return [
            cls(
                folder=folder,
                variant=name,
                **(
                    row
                    | {
                        name: tuple(map(str, row[name]))
                        for name in ("arguments", "notebook")
                        if row.get(name)
                    }
                ),
            )
            for name, row in rows.items()
        ]

    @property
    def name(self) -> str:
        return self.folder.name if self.variant == PLAIN else f"{self.folder.name}:{self.variant}"

    @property
    def program(self) -> Path:
        return self.folder / (self.file or f"{self.folder.name}.py")

    @property
    def results(self) -> Path:
        return self.folder / "results.json"

    def run(self, path: Path, *, seed: int, arguments: Sequence[str] = ()) -> list[Evaluated]:
        """Runs the program and returns what its held-out rollouts were worth, step by step.

        arguments: after those of the variant. Raises RuntimeError when the program fails.
        """
        given = [*self.arguments, *map(str, arguments), "--seed", str(seed), "--path", str(path)]
        variables = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        done = subprocess.run(
            [sys.executable, str(self.program), *given],
            cwd=path,
            env=variables,
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
        )
        if done.returncode:
            raise RuntimeError(f"{self.name} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        return self.evaluations(path, seed=seed)

    def evaluations(self, path: Path, *, seed: int) -> list[Evaluated]:
        """Returns the evaluations that a run has logged, oldest first."""
        log = LoggedSteps(self._model_folder(path, seed) / "trajectories")
        return [
            Evaluated.of_groups(step, list(log.groups("val", step)), self.metric)
            for step in log.by_split().get("val", [])
        ]

    def _model_folder(self, path: Path, seed: int) -> Path:
        found = sorted(path.glob("*/models/*"))
        if self.model is not None:
            found = [one for one in found if one.name == self.model.format(seed=seed)]
        if len(found) != 1:
            named = ", ".join(one.name for one in sorted(path.glob("*/models/*"))) or "none"
            raise RuntimeError(f"{self.name}: one model was expected under {path}, found: {named}")
        return found[0]

    def reference_scores(self) -> dict[str, float]:
        """Returns the metric of the scripted players, measured now."""
        if self.references is None:
            return {}
        module, _, function = self.references.partition(":")
        code = f"import json; from {module} import {function} as scores; print(json.dumps(scores()))"
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
            check=True,
        )
        scores: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return scores


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """The held-out rollouts of one step of one run."""

    step: int
    stage: str
    """What `metadata["stage"]` says; empty where a run has no stages."""
    mean: float
    standard_error: float
    rollouts: int

    @classmethod
    def of_groups(cls, step: int, groups: Sequence[TrajectoryGroup], metric: str) -> Self:
        """Returns the mean over the groups, and its standard error: the rollouts of a group share a scenario.

        Raises RuntimeError when a rollout lacks the metric.
        """
        rollouts = [trajectory for group in groups for trajectory in group]
        lacking = [one for one in rollouts if metric != "reward" and metric not in one.metrics]
        if lacking or not rollouts:
            raise RuntimeError(f"step {step}: {len(lacking)} of {len(rollouts)} rollouts lack {metric!r}")
        means = [
            sum(float(one.reward if metric == "reward" else one.metrics[metric]) for one in group)
            / len(group)
            for group in groups
            if len(group)
        ]
        mean = sum(means) / len(means)
        spread = sum((one - mean) ** 2 for one in means) / max(1, len(means) - 1)
        return cls(
            step=step,
            stage=str(rollouts[0].metadata.get("stage", "")),
            mean=round(mean, 4),
            standard_error=round((spread / len(means)) ** 0.5, 4),
            rollouts=len(rollouts),
        )


@dataclass(frozen=True, kw_only=True)
class ExampleRun:
    """One seed's run."""

    seed: int
    seconds: float
    evaluated: Sequence[Evaluated]

    @property
    def first(self) -> Evaluated:
        return self.evaluated[0]

    @property
    def last(self) -> Evaluated:
        return self.evaluated[-1]

    @property
    def gain_in_errors(self) -> float:
        """The difference of the last and the first evaluation, in standard errors of this difference."""
        error = (self.first.standard_error**2 + self.last.standard_error**2) ** 0.5
        return abs(self.last.mean - self.first.mean) / max(error, 1e-9)

    def stage_means(self) -> dict[str, float]:
        """Returns the last mean of each stage, in their order."""
        return {one.stage: one.mean for one in self.evaluated if one.stage}


@dataclass(kw_only=True)
class Measured:
    """All runs of one variant; `results.json` of a folder holds one for each."""

    machine: str = ""
    references: dict[str, float] = field(default_factory=dict)
    runs: list[ExampleRun] = field(default_factory=list)

    def last(self) -> Estimate | None:
        return Estimate.from_scores([run.last.mean for run in self.runs])

    def first(self) -> Estimate | None:
        return Estimate.from_scores([run.first.mean for run in self.runs])

    def stages(self) -> dict[str, Estimate | None]:
        """Returns the estimate over the seeds of each stage's last evaluation."""
        names = list(dict.fromkeys(stage for run in self.runs for stage in run.stage_means()))
        return {
            name: Estimate.from_scores(
                [run.stage_means()[name] for run in self.runs if name in run.stage_means()]
            )
            for name in names
        }


def read_skills(task: str) -> list[Record]:
    """Returns the cells of `bench.skills` of a task."""
    return [one for one in read_records(RECORDS / "skills.jsonl") if one.cell.task == task]


def from_cells(records: Sequence[Record]) -> dict[str, Measured]:
    """Returns the runs that cells are of; all of them begin with the model as it is."""
    base = [one for one in records if one.cell.method == "base"]
    learned = [one for one in records if one.cell.method == "grpo"]
    if not base or not learned:
        return {}
    runs = [
        ExampleRun(
            seed=one.cell.seed,
            seconds=one.measured.last.seconds,
            evaluated=[
                Evaluated(
                    step=point.step,
                    stage="",
                    mean=point.mean,
                    standard_error=round((point.high - point.mean) / t_975(len(point.scores) - 1), 4),
                    rollouts=len(point.scores) * one.cell.each,
                )
                for point in (base[0].measured.last, *one.measured.points)
            ],
        )
        for one in learned
    ]
    return {PLAIN: Measured(machine=learned[0].machine, runs=runs)}


def read_results(folder: Path) -> dict[str, Measured]:
    """Returns what was measured of a folder's variants; empty where nothing was."""
    if records := read_skills(folder.name):
        return from_cells(records)
    path = folder / "results.json"
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {
        variant: Measured(
            machine=row["machine"],
            references=row["references"],
            runs=[
                ExampleRun(**(run | {"evaluated": [Evaluated(**one) for one in run["evaluated"]]}))
                for run in row["runs"]
            ],
        )
        for variant, row in stored.items()
    }


def write_results(folder: Path, results: Mapping[str, Measured]) -> None:
    """Writes `results.json`: a line for each evaluation, so that a difference can be read."""
    text = json.dumps({variant: asdict(one) for variant, one in results.items()}, indent=1)
    (folder / "results.json").write_text(text + "\n", encoding="utf-8")


def all_examples() -> list[Example]:
    """Returns the examples and their variants, by name."""
    return [one for path in sorted(EXAMPLES.glob("*/example.toml")) for one in Example.read(path.parent)]


def measure(example: Example, seeds: Sequence[int]) -> Iterator[ExampleRun]:
    """Yields a run for each seed."""
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix=f"art-{example.folder.name}-") as folder:
            begun = time.monotonic()
            evaluated = example.run(Path(folder), seed=seed)
            yield ExampleRun(seed=seed, seconds=round(time.monotonic() - begun, 1), evaluated=evaluated)


def measure_and_keep(example: Example, *, seeds: int, again: bool) -> None:
    """Measures the seeds that are missing and keeps each when it has ended."""
    kept = read_results(example.folder).get(example.variant, Measured())
    known = set() if again else {run.seed for run in kept.runs}
    references = example.reference_scores()
    for run in measure(example, [seed for seed in range(seeds) if seed not in known]):
        change = f"{run.first.mean:.3f} -> {run.last.mean:.3f}"
        sys.stderr.write(f"{example.name}, seed {run.seed}: {change}, {run.seconds:.0f} s\n")
        results = read_results(example.folder)
        one = results.setdefault(example.variant, Measured())
        one.machine, one.references = machine(), references
        one.runs = sorted([*(old for old in one.runs if old.seed != run.seed), run], key=lambda run: run.seed)
        write_results(example.folder, results)


def measure_folder(examples: Sequence[Example], seeds: int, again: bool) -> list[str]:
    """Measures the variants of one folder in turn and returns what failed: the others go on."""
    failed = []
    for example in examples:
        try:
            measure_and_keep(example, seeds=seeds, again=again)
        except (RuntimeError, subprocess.SubprocessError) as error:
            failed.append(f"{example.name}: {error}")
    return failed


def main() -> int:
    from bench.example_pages import write_pages

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    known = {example.name: example for example in all_examples() if not example.cells}
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; default: all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--again", action="store_true", help="measure seeds again that were measured before")
    parser.add_argument(
        "--together", type=int, default=1, help="examples at once; then the seconds say nothing"
    )
    parser.add_argument("--pages", action="store_true", help="measure nothing: write charts and tables")
    given = parser.parse_args()
    if unknown := sorted(set(given.names) - set(known)):
        parser.error(f"unknown example {unknown[0]!r}; known: {', '.join(known)}")
    chosen = [known[name] for name in given.names or known]
    failed = []
    if not given.pages:
        folders = [list(group) for _, group in groupby(chosen, key=lambda example: example.folder)]
        with ThreadPoolExecutor(given.together) as pool:
            failed = [
                line
                for lines in pool.map(lambda some: measure_folder(some, given.seeds, given.again), folders)
                for line in lines
            ]
    pages = [one for one in all_examples() if one.cells] if given.pages else []
    write_rows("examples", write_pages([*chosen, *pages]))
    sys.stderr.write("".join(f"{line}\n" for line in failed))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
