"""The folder of a run: what the run was asked to do, one row for each step, and what it has found.

A step has a row once it is trained. Before that it is written down as a `StepUnderWay`, so that a kill
between the commit of a step and its row loses nothing (`art.runs.loop` makes the steps).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from art.client.learning_rates import Leg, legs_to
from art.environments.measure import mean_of_known
from art.errors import ConfigurationError
from art.process.files import write_whole
from art.trajectories import PydanticException, Trajectory, TrajectoryGroup
from art.types import TrainResult, Unscored

if TYPE_CHECKING:
    from art.runs.settings import RunSettings


JUDGE = "judge/"
"""Begins the names of what the judge's checks find, in the metrics of a group."""
ALARM = "judge/alarm"
REASON_CHARS = 500


TRAINED = "data/sheet/trained_rollouts"
"""How many rollouts had a gradient, among a step's metrics."""


@dataclass(frozen=True, kw_only=True)
class RunStep:
    """One line of `steps.jsonl`, as every kind of run has it."""

    step: int
    reward: float | None
    """Mean over the rollouts that have a score; None: none has."""
    trained: int | None
    """Rollouts with a gradient; the rest had a zero advantage, no score, or failed. None: nobody said."""
    seconds_rollouts: float
    """With the judge."""
    seconds_training: float | None
    """None: nobody was there when it ended."""
    recovered: bool = False
    """The process ended between the step's commit and this row, which the next one wrote."""

    def with_result(self, result: TrainResult, *, seconds: float | None) -> Self:
        """The row with what the trainer says. seconds None: an earlier process trained it."""
        trained = result.metrics.get(TRAINED)
        return replace(
            self,
            step=result.step,
            trained=None if trained is None else int(trained),
            seconds_training=None if seconds is None else round(seconds, 3),
            recovered=seconds is None,
        )


@dataclass(frozen=True, kw_only=True)
class StepRow(RunStep):
    """A step whose rollouts were judged."""

    rollouts: int
    failed: int
    unscored: int
    learning_rate: float
    figures: dict[str, float] = field(default_factory=dict)
    """What is known of the rollouts without the judge: means, by name."""
    judge: dict[str, float] = field(default_factory=dict)
    """Figures of the judge's checks, means over the groups; empty without checks."""
    failures: dict[str, int] = field(default_factory=dict)
    """Why rollouts failed, as the kind of error and what it says: how many of each."""


@dataclass(frozen=True, kw_only=True)
class StepUnderWay:
    """A training job that may have been asked for, written down before it is."""

    job_id: str
    step: int
    """The step it starts from."""
    known: Mapping[str, Any]
    """What the run needs to finish the step: its `row` so far, or the numbers of its `scenarios`."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"job_id": self.job_id, "step": self.step, **self.known}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; earlier releases wrote the step into the row alone."""
        known = {name: value for name, value in data.items() if name not in ("job_id", "step")}
        step = data["step"] if "step" in data else known["row"]["step"] - 1
        return cls(job_id=data["job_id"], step=step, known=known)


def mean_reward(groups: Sequence[TrajectoryGroup]) -> tuple[float | None, int]:
    """Returns the mean over the rollouts with a score (None: none has one), and the number without one."""
    rewards = [one.reward for group in groups for one in group]
    scored = [reward for reward in rewards if not isinstance(reward, Unscored)]
    return mean_of_known(scored), len(rewards) - len(scored)


def failures_of(groups: Sequence[TrajectoryGroup]) -> dict[str, int]:
    """Returns why rollouts failed, the most frequent reason first.

    Example: {"McpError: MCP server 'serve' is gone": 2, "McpTimeoutError: ...": 1}.
    """
    found = Counter(
        f"{failure_kind(error)}: {' '.join(error.message.split())}"[:REASON_CHARS]
        for group in groups
        for error in group.exceptions
    )
    return dict(found.most_common())


def failure_kind(error: PydanticException) -> str:
    """The name of its class, which it keeps as "<class 'module.Name'>"."""
    return error.type.rstrip("'>").rpartition(".")[2].rpartition("'")[2]


def judge_figures(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Returns means of the judge checks' figures, over the groups that have them."""
    found: dict[str, list[float]] = {}
    metrics: list[Mapping[str, float | int | bool]] = [group.metrics for group in groups]
    for name, value in (item for one in metrics for item in one.items() if item[0].startswith(JUDGE)):
        found.setdefault(name, []).append(float(value))
    return {name: sum(values) / len(values) for name, values in sorted(found.items())}


RUN, STEPS, UNDER_WAY = "run.json", "steps.jsonl", "step-under-way.json"
REPORT, REPORT_JSON = "report.md", "report.json"
Row = TypeVar("Row", bound=RunStep)


@dataclass(frozen=True)
class RunFolder(Generic[Row]):
    """`steps.jsonl`, and one evaluation for each adapter that was evaluated.

    `step-under-way.json` is there from before a step is trained until it has its row.
    """

    ROW: ClassVar[type[RunStep]]
    EVALUATION: ClassVar[str] = "evaluation-{:04d}.jsonl"

    path: Path

    def steps(self) -> list[Row]:
        """The steps so far, in their order; the later row of a step that was written twice."""
        path = self.path / STEPS
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        rows: dict[int, Any] = {row["step"]: self.ROW(**row) for row in map(json.loads, lines)}
        return [rows[step] for step in sorted(rows)]

    def add_step(self, row: Row) -> None:
        """A step that is there already is written over: it was repeated."""
        rows = [*(known for known in self.steps() if known.step < row.step), row]
        self.write_text(STEPS, "".join(json.dumps(asdict(one)) + "\n" for one in rows))
        (self.path / UNDER_WAY).unlink(missing_ok=True)

    def begin_step(self, step: StepUnderWay) -> None:
        """Records the beginning of a step before it is trained; its row ends it."""
        self.write(UNDER_WAY, step.to_dict())

    def step_under_way(self) -> StepUnderWay | None:
        """The step that was begun and has no row."""
        data = self.read(UNDER_WAY)
        begun = None if data is None else StepUnderWay.from_dict(data)
        return None if begun is None or any(row.step == begun.step + 1 for row in self.steps()) else begun

    def evaluation_path(self, step: int) -> Path:
        return self.path / self.EVALUATION.format(step)

    def read(self, name: str) -> Any:
        """A JSON file; None where there is none."""
        path = self.path / name
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def write(self, name: str, data: Any) -> None:
        """A JSON file."""
        self.write_text(name, json.dumps(data, indent=1, ensure_ascii=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Writes the file atomically: a reader sees the old file or the new one, never a part."""
        write_whole(self.path / name, text, durable=False)


@dataclass(frozen=True)
class JudgedRunFolder(RunFolder[StepRow]):
    """A run's folder with `run.json`, `report.md` and `report.json`; an evaluation is the rollouts of each
    test task.
    """

    ROW: ClassVar[type[RunStep]] = StepRow

    def open(self, now: Mapping[str, Any], settings: RunSettings) -> bool:
        """Starts a new run, or resumes the one that is here (True).

        now: what the run is of, plain values by name. Raises ConfigurationError where the one that is here is
        of something else or of other settings.
        """
        saved = self.run()
        if saved is not None:
            for key, value in now.items():
                if saved[key] != value:
                    raise ConfigurationError(
                        f"the run in {str(self.path)!r} has {key}={saved[key]!r}, not {value!r}; give this "
                        "one another name"
                    )
            settings.check_resumes(type(settings).from_options(saved["settings"]))
        self.save_run({**(saved or {}), **now, "settings": settings.to_dict()})
        return saved is not None

    def run(self) -> dict[str, Any] | None:
        """The settings of the run; None for a new one."""
        run: dict[str, Any] | None = self.read(RUN)
        return run

    def save_run(self, run: Mapping[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self.write(RUN, run)

    def schedule(self, total: int, *, done: int) -> tuple[Leg, ...]:
        """The learning rate's, recorded with the run, which has made `done` steps and is to have `total`."""
        run = self.run() or {}
        legs = legs_to(total, run.get("legs", ()), done=done)
        self.save_run({**run, "legs": legs})
        return legs

    def evaluation(self, step: int) -> list[list[Trajectory]] | None:
        """The rollouts of the adapter of `step` for each test task; None: not yet made."""
        path = self.evaluation_path(step)
        if not path.is_file():
            return None
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [[Trajectory.model_validate(one) for one in row] for row in rows]

    def save_evaluation(self, step: int, rollouts: Sequence[Sequence[Trajectory]]) -> None:
        rows = [[one.model_dump(mode="json") for one in row] for row in rollouts]
        self.write_text(self.evaluation_path(step).name, "".join(json.dumps(row) + "\n" for row in rows))

    def save_report(self, markdown: str, plain: Mapping[str, Any]) -> None:
        self.write(REPORT_JSON, plain)
        self.write_text(REPORT, markdown)
