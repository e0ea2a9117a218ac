"""The programs of `examples/`: what `example.toml` says of each, how it is run, what its log has."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any, Self

from art.tracking.trajectory_log import LoggedSteps
from art.trajectories import Trajectory
from bench.learning.cells import RECORDS, Record, read_records

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
MOST_SECONDS = 3600
"""The deadline of one run. The machine may do other work."""
PLAIN = "plain"
"""The variant with the program's own defaults."""
ROLLOUTS = 8
"""Of each held-out scenario."""


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
    """Whether its program has an environment, whose base and RL `bench.learning.skills` measures."""
    stages: Mapping[str, int] = field(default_factory=dict, hash=False)
    """The supervised stages of the program, and the step after which each has ended."""
    last: str = "RL"
    """What the last stage is called in tables."""
    without: Mapping[str, str] = field(default_factory=dict, hash=False)
    """What its tables lack, and why: `rejection`, `greedy`, `pass@8`, `greedy at the end`."""
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

    @classmethod
    def find(cls, folder: str, variant: str = "") -> Self:
        """Returns the example of a folder, or a variant of it."""
        return next(one for one in cls.read(EXAMPLES / folder) if one.variant == (variant or PLAIN))

    @property
    def variant_of_cells(self) -> str:
        return "" if self.variant == PLAIN else self.variant

    @property
    def methods(self) -> list[str]:
        """The methods of its cells, in the order of tables."""
        return ["base", *(["prompt"] if self.cells else []), *self.stages, "rejection", "grpo"]

    def score(self, rollout: Trajectory) -> float:
        """Returns the metric of a held-out rollout. Raises KeyError where it lacks it."""
        return float(rollout.reward if self.metric == "reward" else rollout.metrics[self.metric])

    @property
    def name(self) -> str:
        return self.folder.name if self.variant == PLAIN else f"{self.folder.name}:{self.variant}"

    @property
    def program(self) -> Path:
        return self.folder / (self.file or f"{self.folder.name}.py")

    def load(self) -> ModuleType:
        """Imports the program; what it imports lies beside it."""
        path = self.program
        if str(path.parent) not in sys.path:
            sys.path.insert(0, str(path.parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module

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
            Evaluated.from_scores(
                step, [[self.score(one) for one in group] for group in log.groups("val", step)]
            )
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
    mean: float
    standard_error: float

    @classmethod
    def from_scores(cls, step: int, scores: Sequence[Sequence[float]]) -> Self:
        """Returns the mean over the groups, and its standard error: the rollouts of a group share a scenario.

        Raises RuntimeError where there are no rollouts.
        """
        means = [fmean(one) for one in scores if one]
        if not means:
            raise RuntimeError(f"step {step}: there are no held-out rollouts")
        mean = fmean(means)
        spread = sum((one - mean) ** 2 for one in means) / max(1, len(means) - 1)
        error = (spread / len(means)) ** 0.5
        return cls(step=step, mean=round(mean, 4), standard_error=round(error, 4))


def read_example_records(name: str) -> list[Record]:
    """Returns the records of a folder, those of its variants too."""
    files = [RECORDS / "skills.jsonl", RECORDS / "examples.jsonl"]
    return [one for file in files for one in read_records(file) if one.cell.task == name]


def ways_of(example: Example, records: Iterable[Record]) -> dict[str, list[Record]]:
    """Returns the records of each method in the order of tables. Those with eight rollouts of a scenario
    replace those without, and the newest one of a seed the older ones.
    """
    found: dict[str, dict[int, Record]] = {}
    own = [one for one in records if one.cell.variant == example.variant_of_cells]
    eight = {one.cell.method for one in own if one.cell.each >= ROLLOUTS}
    for one in own:
        if one.cell.each >= ROLLOUTS or one.cell.method not in eight:
            found.setdefault(one.cell.method, {})[one.cell.seed] = one
    return {name: list(found[name].values()) for name in example.methods if name in found}


def all_examples() -> list[Example]:
    """Returns the examples and their variants, by name."""
    return [one for path in sorted(EXAMPLES.glob("*/example.toml")) for one in Example.read(path.parent)]
