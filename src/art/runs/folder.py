"""The folder of a run: what the run was asked to do, one row for each step, and what it has found.

Its settings (`RunSettings`) are saved with it, and held against those of the call that resumes it.

A step has a row once it is trained. Before that it is written down as a `StepUnderWay`, so that a kill
between the commit of a step and its row loses nothing (`art.runs.loop` makes the steps).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

from art.backend import Keyword
from art.client.options.declared_options import DeclaredOption, declared_options
from art.client.options.learning_rates import LORA_RATE, Leg, legs_to, share_at, starting_rate
from art.environments.measure import mean_of_known
from art.errors import ConfigurationError, did_you_mean
from art.process.files import make_private_folder, write_whole
from art.tracking.model_files import append_line, read_history
from art.tracking.rollout_figures import scores
from art.trajectories import PydanticException, Trajectory, TrajectoryGroup
from art.types import TrainResult

Count = Annotated[int, Keyword(least=1)]
Share = Annotated[float, Keyword(least=0, most=1)]
AboveZero = Annotated[float, Keyword(above=0)]


@dataclass(frozen=True, kw_only=True)
class RunSettings(ABC):
    """The settings of every run. A kind of run adds its own, and may have other defaults.

    This is the only declaration of a setting: its check and its option on the command line are made of its
    type, its default and the text below it.
    """

    ENTRY: ClassVar[str]
    """The function that takes them, for error messages."""
    OWN: ClassVar[str] = "give the run another name"
    """How a call begins a run of its own, for error messages."""
    OLDER: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"test_attempts": "eval_group_size", "difficulty_attempts": "difficulty_rollouts"}
    )
    """Older names of settings, which programs and saved runs have."""
    MAY_CHANGE: ClassVar[frozenset[str]] = frozenset({"steps", "epochs", "concurrency", "max_failed"})
    """On resuming; whatever else differs would make another run of it."""

    group_size: Annotated[int, Keyword(least=2)] = 4
    """Rollouts per task of a step."""
    groups_per_step: Count = 2
    """Tasks per step."""
    steps: Annotated[int | None, Keyword(least=0)] = None
    """Training steps. Default: as many as the epochs take."""
    learning_rate: AboveZero = LORA_RATE
    """Learning rate of the adapter after warm-up. Default: 3e-4, or what a built-in model's card says."""
    warmup_steps: Annotated[int, Keyword(least=0)] = 0
    """Steps of learning-rate warm-up."""
    final_share: Share = 1.0
    """Fraction of the learning rate that is left at the last step, after linear decay."""
    max_tokens: Annotated[int | None, Keyword(least=1)] = None
    """The most tokens of one completion."""
    temperature: Annotated[float, Keyword(least=0)] = 1.0
    """Sampling temperature of rollouts."""
    eval_group_size: Count = 2
    """Rollouts of each test task, before and after, with the same seeds."""
    max_refills: Annotated[int, Keyword(least=0)] = 0
    """Further tasks of a step at most, in place of those whose rollouts all have one reward."""
    concurrency: Count = 16
    """Concurrent rollouts."""
    max_failed: Share = 0.5
    """Share of a step's rollouts that may fail before the run stops."""
    seed: int = 0
    """Seed of the split, the order and the test rollouts."""

    def __post_init__(self) -> None:
        for name, declared in declared_options(type(self)).items():
            value = getattr(self, name)
            if not declared.fits(value):
                raise ConfigurationError(f"{name}={value!r} {_demand(declared, value)}")

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Builds the settings from keywords. Raises ConfigurationError for an unknown one, with the known
        ones.
        """
        known = [field.name for field in fields(cls)]
        options = {cls.OLDER.get(name, name): value for name, value in options.items()}
        for name in options:
            if name not in known:
                hint = did_you_mean(name, known)
                raise ConfigurationError(
                    f"{name}={options[name]!r} is no option of art.{cls.ENTRY}{hint and f', {hint}'}; "
                    f"known: {', '.join(known)}"
                )
        return cls(**options)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @abstractmethod
    def total_steps(self, num_train: int) -> int:
        """Returns the steps of the run with so many training tasks."""

    def rate_at(self, step: int, legs: Sequence[Leg]) -> float:
        """The learning rate of `step` (from 0): a linear rise in a linear fall, by the schedule's legs."""
        share = share_at(step, legs, warmup_steps=self.warmup_steps, final_share=self.final_share)
        return self.learning_rate * share

    def check_resumes(self, saved: RunSettings) -> None:
        """Raises ConfigurationError where these settings are not those that the run began with."""
        for name, was in saved.to_dict().items():
            now = getattr(self, name)
            if now != was and name not in self.MAY_CHANGE:
                raise ConfigurationError(
                    f"{name}={now!r}, but the run was started with {was!r}: leave it as it was, or {self.OWN}"
                )


def _demand(declared: DeclaredOption, value: Any) -> str:
    """Returns the requirement that a value does not meet."""
    bounds, is_integer = declared.keyword, "whole number" in declared.takes
    if isinstance(value, bool) or not isinstance(value, int if is_integer else (int, float)):
        return f"must be {declared.takes}"
    if bounds.most is not None:
        return "is a share, 0 to 1"
    return "must be above 0" if bounds.above is not None else f"must be at least {bounds.least}"


ADDED_BY_GATHERING = {"completion_tokens", "duration"}
"""Metrics that every gathered rollout has, beside those of its own."""
JUDGE = "judge/"
"""Begins the names of what the judge's checks find, in the metrics of a group."""
REASON_CHARS = 500


TRAINED, STARTED = "data/sheet/trained_rollouts", "data/sheet/started_rollouts"
"""How many rollouts had a gradient, and how many there were, among a step's metrics."""


@dataclass(frozen=True, kw_only=True)
class RunStep:
    """One line of `steps.jsonl`, as every kind of run has it."""

    step: int
    reward: float | None
    """Mean over the rollouts that have a score; None: none has."""
    trained: int | None
    """Rollouts with a gradient; the rest had a zero advantage, no score, or failed. None: nobody said."""
    seconds_rollouts: float
    """The time in seconds of the rollouts, with the judge."""
    seconds_training: float | None
    """None: nobody was there when it ended."""
    recovered: bool = False
    """The process ended between the step's commit and this row, which the next one wrote."""
    counts: dict[str, float] = field(default_factory=dict)
    """Further figures for the step's row of the history, by name."""

    def with_result(self, result: TrainResult, *, seconds: float | None) -> Self:
        """The row with what the trainer says. seconds None: an earlier process trained it."""
        trained = result.metrics.get(TRAINED)
        if trained is None and STARTED in result.metrics:
            trained = 0.0  # fates that no rollout met are left out
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
    outcomes: list[tuple[str, bool]] = field(default_factory=list)
    """The scenario's id of each group, and whether all its rewards were equal (`ScenarioSampler`)."""


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
    scored = [reward for group in groups for reward in scores(group)]
    return mean_of_known(scored), sum(map(len, groups)) - len(scored)


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
SettingsT = TypeVar("SettingsT", bound=RunSettings)


@dataclass(frozen=True)
class RunFolder(Generic[Row]):
    """`steps.jsonl`, and one evaluation for each adapter that was evaluated.

    `step-under-way.json` is there from before a step is trained until it has its row.
    """

    ROW: ClassVar[type[RunStep]]
    EVALUATION: ClassVar[str] = "evaluation-{:04d}.jsonl"

    path: Path

    def steps(self) -> list[Row]:
        """The steps so far, in their order. A step that was repeated replaces its row and those after it."""
        rows: list[Any] = []
        for known in read_history(self.path / STEPS):
            while rows and rows[-1].step >= known["step"]:
                rows.pop()
            rows.append(self.ROW(**known))
        return rows

    def add_step(self, row: Row) -> None:
        """Adds a row, without reading those before it: a long run has thousands."""
        append_line(self.path / STEPS, json.dumps(asdict(row)))
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

    def settings(self, kind: type[SettingsT], base_model: str, options: Mapping[str, Any]) -> SettingsT:
        """`from_options` with a learning rate where none (or None) is given: that of the run that is here, or
        else the base model's.
        """
        given = {name: value for name, value in options.items() if (name, value) != ("learning_rate", None)}
        begun = (self.run() or {}).get("settings", {})
        rate = begun.get("learning_rate", starting_rate(base_model))
        return kind.from_options({"learning_rate": rate, **given})

    def open(self, now: Mapping[str, Any], settings: RunSettings) -> bool:
        """Starts a new run, or resumes the one that is here (True).

        now: what the run is of, plain values by name. Raises ConfigurationError where the one that is here is
        of something else or of other settings.
        """
        saved = self.run()
        if saved is not None:
            for key, value in now.items():
                if (was := saved[key]) != value:
                    raise ConfigurationError(
                        f"the run in {str(self.path)!r} has {key}={was!r}, not {value!r}; {settings.OWN}"
                    )
            settings.check_resumes(type(settings).from_options(saved["settings"]))
        self.save_run({**(saved or {}), **now, "settings": settings.to_dict()})
        return saved is not None

    def run(self) -> dict[str, Any] | None:
        """The settings of the run; None for a new one."""
        run: dict[str, Any] | None = self.read(RUN)
        return run

    def save_run(self, run: Mapping[str, Any]) -> None:
        make_private_folder(self.path)
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
