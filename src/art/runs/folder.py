"""The folder of a run: what the run was asked to do, one row for each step, and what it has found.

A step has a row (`StepRow`) once it is trained. Before that it is written down as a `StepIntent`, so that a
kill between the commit of a step and its row loses nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.client.learning_rates import Leg, legs_to
from art.client.older_backends import as_backend
from art.environments.measure import mean_of_known
from art.errors import ConfigurationError
from art.process.files import write_whole
from art.tracking.folders import get_model_dir
from art.tracking.model_files import read_history
from art.trajectories import PydanticException, Trajectory, TrajectoryGroup
from art.types import TrainResult, Unscored

if TYPE_CHECKING:
    from art.model import TrainableModel
    from art.runs.settings import RunSettings


JUDGE = "judge/"
"""Begins the names of what the judge's checks find, in the metrics of a group."""
ALARM = "judge/alarm"
REASON_CHARS = 500


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """One line of `steps.jsonl`."""

    step: int
    reward: float | None
    """Mean over the attempts that the judge scored; None: none was."""
    rollouts: int
    failed: int
    unscored: int
    trained: int | None
    """Rollouts with a gradient; the rest had a zero advantage, no score, or failed. None: nobody said."""
    learning_rate: float
    seconds_rollouts: float
    """With the judge."""
    seconds_training: float | None
    """None: nobody was there when it ended."""
    figures: dict[str, float] = field(default_factory=dict)
    """What is known of the attempts without the judge: means, by name."""
    judge: dict[str, float] = field(default_factory=dict)
    """Figures of the judge's checks, means over the groups; empty without checks."""
    failures: dict[str, int] = field(default_factory=dict)
    """Why attempts failed, as the kind of error and what it says: how many of each."""
    recovered: bool = False
    """The process ended between the step's commit and this row, which the next one wrote."""


def mean_reward(groups: Sequence[TrajectoryGroup]) -> tuple[float | None, int]:
    """Over the attempts with a score (None: none has one), and how many have none."""
    rewards = [one.reward for group in groups for one in group]
    scored = [reward for reward in rewards if not isinstance(reward, Unscored)]
    return mean_of_known(scored), len(rewards) - len(scored)


def failures_of(groups: Sequence[TrajectoryGroup]) -> dict[str, int]:
    """Why attempts failed, the most frequent reason first.

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
    """Means of what the judge's checks say, over the groups of which they say it."""
    found: dict[str, list[float]] = {}
    metrics: list[Mapping[str, float | int | bool]] = [group.metrics for group in groups]
    for name, value in (item for one in metrics for item in one.items() if item[0].startswith(JUDGE)):
        found.setdefault(name, []).append(float(value))
    return {name: sum(values) / len(values) for name, values in sorted(found.items())}


TRAINED = "data/sheet/trained_rollouts"


@dataclass(frozen=True, kw_only=True)
class StepIntent:
    """What is known of a step before its gradient, and the job that is to make it."""

    job_id: str
    row: StepRow

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"job_id": self.job_id, "row": asdict(self.row)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StepIntent:
        """The inverse of `to_dict`."""
        return cls(job_id=data["job_id"], row=StepRow(**data["row"]))

    def options(self, model: TrainableModel[Any, Any]) -> dict[str, Any]:
        """For the backend's `train`: the job's name, where the backend can be asked about it later."""
        return (
            {"job_id": self.job_id, "expected_step": self.row.step - 1} if backend_knows_jobs(model) else {}
        )

    async def recover(self, model: TrainableModel[Any, Any]) -> StepRow | None:
        """The row of the step that an earlier process began; None: it was not committed.

        Waits for a job that the server still has. Raises what the backend raises.
        """
        backend: Any = as_backend(model.backend())
        result = await backend.training_result(model, self.job_id) if backend_knows_jobs(model) else None
        if result is None and await model.get_step() < self.row.step:
            return None
        logged = logged_train_metrics(model, self.row.step)
        metrics = (result.metrics if result is not None else {}) or logged
        if metrics and not logged:
            await model.log(split="train", metrics=metrics, step=self.row.step)
        return replace(row_with_result(self.row, TrainResult(self.row.step, dict(metrics))), recovered=True)


def row_with_result(row: StepRow, result: TrainResult) -> StepRow:
    """The row with what the trainer says."""
    trained = result.metrics.get(TRAINED)
    return replace(row, step=result.step, trained=None if trained is None else int(trained))


def backend_knows_jobs(model: TrainableModel[Any, Any]) -> bool:
    """Whether the backend tells afterwards what came of a job. Programs may bring backends that do not."""
    return hasattr(as_backend(model.backend()), "training_result")


def logged_train_metrics(model: TrainableModel[Any, Any], step: int) -> dict[str, float]:
    """The training metrics of a step in the model's own log; empty where the kill came first."""
    rows = read_history(Path(get_model_dir(model)) / "history.jsonl")
    return next((row for row in rows if row.get("step") == step and TRAINED in row), {})


RUN, STEPS, INTENT = "run.json", "steps.jsonl", "step-under-way.json"
REPORT, REPORT_JSON = "report.md", "report.json"


@dataclass(frozen=True)
class RunFolder:
    """`run.json`, `steps.jsonl`, `evaluation-<step>.jsonl`, `report.md`, `report.json`.

    `step-under-way.json` is there from before a step is trained until it has its row.
    """

    path: Path

    def open(self, now: Mapping[str, Any], settings: RunSettings) -> bool:
        """Begin a new run, or go on with the one that is here (True).

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
            settings.check_resumes(type(settings).of(saved["settings"]))
        self.save_run({**(saved or {}), **now, "settings": settings.to_dict()})
        return saved is not None

    def run(self) -> dict[str, Any] | None:
        """What the run was asked to do; None for a new one."""
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

    def steps(self) -> list[StepRow]:
        """The steps so far, in their order."""
        path = self.path / STEPS
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        return [StepRow(**json.loads(line)) for line in lines]

    def add_step(self, row: StepRow) -> None:
        """A step that is there already is written over: it was repeated."""
        rows = [*(known for known in self.steps() if known.step < row.step), row]
        self.write_text(STEPS, "".join(json.dumps(asdict(one)) + "\n" for one in rows))
        (self.path / INTENT).unlink(missing_ok=True)

    def begin_step(self, intent: StepIntent) -> None:
        """To be called before the step is trained; its row ends it."""
        self.write(INTENT, intent.to_dict())

    def step_under_way(self) -> StepIntent | None:
        """The step that was begun and has no row."""
        data = self.read(INTENT)
        intent = None if data is None else StepIntent.from_dict(data)
        return None if intent is None or any(row.step == intent.row.step for row in self.steps()) else intent

    def evaluation(self, step: int) -> list[list[Trajectory]] | None:
        """The attempts of the adapter of `step` at each test task; None: not yet made."""
        path = self.path / evaluation_file(step)
        if not path.is_file():
            return None
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [[Trajectory.model_validate(one) for one in row] for row in rows]

    def save_evaluation(self, step: int, attempts: Sequence[Sequence[Trajectory]]) -> None:
        rows = [[one.model_dump(mode="json") for one in row] for row in attempts]
        self.write_text(evaluation_file(step), "".join(json.dumps(row) + "\n" for row in rows))

    def save_report(self, markdown: str, plain: Mapping[str, Any]) -> None:
        self.write(REPORT_JSON, plain)
        self.write_text(REPORT, markdown)

    def read(self, name: str) -> Any:
        """A JSON file; None where there is none."""
        path = self.path / name
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def write(self, name: str, data: Any) -> None:
        """A JSON file."""
        self.write_text(name, json.dumps(data, indent=1, ensure_ascii=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """So that a reader sees the old file or the new one, never a part."""
        write_whole(self.path / name, text, durable=False)


def evaluation_file(step: int) -> str:
    return f"evaluation-{step:04d}.jsonl"
