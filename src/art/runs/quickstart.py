"""The quick start: a small model learns a task in the loop that any program with ART has.

evaluate -> (rollouts -> rewards -> train) x steps -> evaluate

A run has its settings, resolved against the task's defaults and saved; its folder, with a row for each
step; and evaluations, means over rollouts with their standard errors. Progress is saved after each step.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import art
from art.client.options.learning_rates import Leg, legs_to
from art.environments import tasks
from art.environments.tasks import EVALUATION_SEED, Task
from art.errors import ARTError, ConfigurationError
from art.process.files import make_private_folder, write_whole
from art.runs.folder import ADDED_BY_GATHERING, RunFolder, RunStep
from art.runs.loop import EvaluationLog, ScoredGroups, TrainingLoop
from art.tracking.folders import ModelPaths, get_output_dir_from_model_properties
from art.types import SHOW

SETTINGS_FILE, RESULT_FILE = "settings.json", "result.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class QuickstartChoices:
    """The user's choices; None selects the task's own default."""

    task: str
    seed: int = 0
    steps: int | None = None
    groups: int | None = None
    group_size: int | None = None
    learning_rate: float | None = None
    base_model: str | None = None
    evaluation_games: int | None = None
    deterministic: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class QuickstartSettings:
    """A run, fully specified. The same settings give the same scenarios in the same order."""

    task: str
    seed: int
    steps: int
    groups: int
    """Scenarios a step."""
    group_size: int
    """Rollouts of each scenario."""
    learning_rate: float
    """At its height; it rises and falls as the task's defaults say."""
    base_model: str
    evaluation_games: int
    deterministic: bool
    legs: tuple[Leg, ...] = ()
    """The legs of the learning rate's schedule where a resumed run got another number of steps."""

    @property
    def schedule(self) -> tuple[Leg, ...]:
        return self.legs or legs_to(self.steps, [], done=0)

    def save(self, folder: Path) -> None:
        write_whole(folder / SETTINGS_FILE, json.dumps(asdict(self), indent=1) + "\n", durable=False)

    @classmethod
    def load(cls, folder: Path) -> QuickstartSettings:
        path = folder / SETTINGS_FILE
        if not path.is_file():
            raise ConfigurationError(
                f"There is no run to resume in {str(folder)!r}: {SETTINGS_FILE} is missing."
            )
        saved = json.loads(path.read_text())
        return cls(**{**saved, "legs": tuple((first, last) for first, last in saved.get("legs", ()))})


def resolve_settings(choices: QuickstartChoices) -> QuickstartSettings:
    """Fill what was not chosen from the task's defaults. Raises ConfigurationError for a learning rate of 0
    or less.
    """
    task = tasks.find(choices.task)
    if choices.learning_rate is not None and not choices.learning_rate > 0:
        raise ConfigurationError(f"--learning-rate {choices.learning_rate:g}: it is a number above 0")
    defaults = tasks.defaults_of(task, choices.base_model)
    return QuickstartSettings(
        task=task.NAME,
        seed=choices.seed,
        steps=choices.steps or defaults.steps,
        groups=choices.groups or defaults.groups,
        group_size=choices.group_size or defaults.group_size,
        learning_rate=choices.learning_rate or defaults.learning_rate,
        base_model=choices.base_model or defaults.base_model,
        evaluation_games=choices.evaluation_games or defaults.evaluation_rollouts,
        deterministic=choices.deterministic,
    )


def resumed_settings(
    saved: QuickstartSettings, choices: QuickstartChoices, *, done: int
) -> QuickstartSettings:
    """The saved run, which has made `done` steps, with the number of steps possibly changed: the learning
    rate goes on from where it is.

    Raises ConfigurationError where a choice contradicts what the run was started with.
    """
    if choices.task != saved.task:
        raise ConfigurationError(f"The run to resume learns {saved.task!r}, not {choices.task!r}.")
    for name in ("groups", "group_size", "learning_rate", "base_model"):
        chosen, was = getattr(choices, name), getattr(saved, name)
        if chosen is not None and chosen != was:
            option = {"groups": "groups_per_step"}.get(name, name).replace("_", "-")
            raise ConfigurationError(f"The run to resume has --{option} {was}, not {chosen}. Leave it out.")
    steps = choices.steps or saved.steps
    legs = saved.legs if steps == saved.steps else legs_to(steps, saved.schedule, done=done)
    return replace(saved, steps=steps, legs=legs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """The means over rollouts of new scenarios; of a metric, over the rollouts that have it.

    >>> Evaluation.from_rows([{"reward": 1.0, "not_lost": 1.0}, {"reward": -1.0, "not_lost": 0.0}]).means
    {'reward': 0.0, 'not_lost': 0.5}
    """

    rollouts: int
    means: dict[str, float]
    """The means by name: of the reward and of every metric of the task."""
    errors: dict[str, float]
    """Standard error of each mean of two values or more; a single one says nothing of its spread."""

    @classmethod
    def from_rows(cls, rows: Sequence[dict[str, float]]) -> Evaluation:
        if not rows:
            raise ValueError("an evaluation needs at least one rollout")
        names = dict.fromkeys(name for row in rows for name in row)
        values = {name: [row[name] for row in rows if name in row] for name in names}
        means = {name: mean(values[name]) for name in names}
        errors = {
            name: _standard_error(found, means[name]) for name, found in values.items() if len(found) > 1
        }
        return cls(rollouts=len(rows), means=means, errors=errors)

    def to_json(self) -> dict[str, Any]:
        return {**self.means, "attempts": self.rollouts, "standard_errors": self.errors}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Evaluation:
        means = {name: value for name, value in data.items() if name not in {"attempts", "standard_errors"}}
        return cls(rollouts=data["attempts"], means=means, errors=data["standard_errors"])


def _standard_error(values: Sequence[float], mean: float) -> float:
    return math.sqrt(sum((value - mean) ** 2 for value in values)) / len(values)


RUNS = Path("runs")


@dataclass(frozen=True, kw_only=True)
class QuickstartStep(RunStep):
    """A step whose rollouts the task itself scored, every one."""

    reward: float
    score: float
    """Mean of the metric that says how good the policy is (`task.SCORE`)."""


@dataclass(frozen=True)
class QuickstartFolder(RunFolder[QuickstartStep]):
    """A run's folder with the settings, the result, the chart, and the server's data."""

    ROW: ClassVar[type[RunStep]] = QuickstartStep
    EVALUATION: ClassVar[str] = "evaluation-{:04d}.json"

    @property
    def data_dir(self) -> Path:
        return self.path / "art"

    def model_folder(self, task: str) -> ModelPaths:
        """Returns the folder of the model that learns the task."""
        return ModelPaths(Path(get_output_dir_from_model_properties(PROJECT, task, str(self.data_dir))))

    @property
    def chart(self) -> Path:
        return self.path / "reward.png"

    @property
    def result(self) -> Path:
        return self.path / RESULT_FILE

    @property
    def done(self) -> int:
        """Steps that were made."""
        return max((row.step for row in self.steps()), default=0)

    def evaluation(self, step: int) -> tuple[Evaluation, list[dict[str, Any]]] | None:
        """A saved evaluation of an adapter and its rollouts, or None."""
        data = self.read(self.evaluation_path(step).name)
        return None if data is None else (Evaluation.from_json(data["evaluation"]), data["attempts"])

    def save_evaluation(self, step: int, evaluation: Evaluation, rollouts: list[dict[str, Any]]) -> None:
        data = {"evaluation": evaluation.to_json(), "attempts": rollouts}
        self.write_text(self.evaluation_path(step).name, json.dumps(data, indent=1) + "\n")


def new_folder(output: Path | None, *, task: str) -> QuickstartFolder:
    """Make the folder of a new run. Raises ConfigurationError where another run lives."""
    path = output or RUNS / f"{task}-{datetime.now():%Y%m%d-%H%M%S}"
    if (path / SETTINGS_FILE).exists():
        raise ConfigurationError(
            f"{str(path)!r} holds a run already: pass --resume to go on with it, or another --output."
        )
    make_private_folder(path)
    return QuickstartFolder(path)


def existing_folder(output: Path | None, *, task: str) -> QuickstartFolder:
    """The folder to resume: `output`, or the newest unfinished run of the task under ./runs."""
    if output is not None:
        return QuickstartFolder(output)
    unfinished = [
        path.parent
        for path in RUNS.glob(f"{task}-*/{SETTINGS_FILE}")
        if not (path.parent / RESULT_FILE).exists()
    ]
    if not unfinished:
        raise ConfigurationError(
            f"There is no unfinished run of {task!r} under {str(RUNS)!r}; name one with --output."
        )
    return QuickstartFolder(max(unfinished, key=lambda path: path.stat().st_mtime))


PROJECT = "quickstart"
KEPT_TRANSCRIPTS = 200

OnStep = Callable[[QuickstartStep], None]


async def run_quickstart(
    settings: QuickstartSettings,
    folder: QuickstartFolder,
    *,
    on_step: OnStep,
    on_link: Callable[[str], None] | None = None,
) -> tuple[Evaluation, Evaluation]:
    """Do what is still to be done of a run; returns the evaluations before and after.

    on_link: is given a link to the pages of the run, which opens one browser.

    Everything that matters is on disk after each step: a run may be cancelled anywhere and called again.
    """
    task = tasks.find(settings.task)
    model = art.TrainableModel(name=task.NAME, project=PROJECT, base_model=settings.base_model)
    options = {"engine": {"options": {"reuse_prefixes": False}}} if settings.deterministic else {}
    async with art.LocalBackend(path=str(folder.data_dir), server_options=options) as backend:
        await model.register(backend)
        if on_link is not None:
            with suppress(ARTError):  # without its pages the run goes on
                on_link(await backend.pages_link())
        before = await evaluate_once(0, model, task, settings, folder)
        loop = TrainingLoop(model, folder)
        if (row := await loop.recover()) is not None:
            on_step(row)
        await loop.run(settings.steps, lambda step: roll_out(model, task, settings, step), on_step)
        after = await evaluate_once(settings.steps, model, task, settings, folder)
    return before, after


async def roll_out(
    model: art.TrainableModel, task: Task, settings: QuickstartSettings, step: int
) -> ScoredGroups[QuickstartStep]:
    """Rollouts and their rewards."""
    begin = time.perf_counter()
    limit = concurrency(settings)
    scenarios = [
        task.scenario(settings.seed, step * settings.groups + index) for index in range(settings.groups)
    ]
    groups = await art.gather_trajectory_groups(
        [
            art.TrajectoryGroup(
                rollout_scenario(limit, model, task, scenario, request_seed(settings, step, index, number))
                for number in range(settings.group_size)
            )
            for index, scenario in enumerate(scenarios)
        ],
        pbar_desc=f"step {step + 1}/{settings.steps}",
    )
    seconds = time.perf_counter() - begin
    trajectories = [trajectory for group in groups for trajectory in group]
    row = QuickstartStep(
        step=step + 1,
        reward=mean([reward_of(trajectory) for trajectory in trajectories]),
        score=mean([float(trajectory.metrics[task.SCORE]) for trajectory in trajectories]),
        trained=None,
        seconds_rollouts=round(seconds, 3),
        seconds_training=None,
    )
    defaults = tasks.defaults_of(task, settings.base_model)
    rate = defaults.rate_at(step, legs=settings.schedule, learning_rate=settings.learning_rate)
    return ScoredGroups(groups=groups, row=row, learning_rate=rate)


async def evaluate_once(
    step: int, model: art.TrainableModel, task: Task, settings: QuickstartSettings, folder: QuickstartFolder
) -> Evaluation:
    """Rollouts of fresh scenarios with the newest adapter (that of `step`), or what was saved of them. Its
    means are in the model's history, as split val.
    """
    saved = folder.evaluation(step)
    evaluation = await evaluate_adapter(step, model, task, settings, folder) if saved is None else saved[0]
    errors = evaluation.errors
    numbers = evaluation.means | ({"reward_sem": errors["reward"]} if "reward" in errors else {})
    await EvaluationLog(model).add_numbers(step, numbers)
    return evaluation


async def evaluate_adapter(
    step: int, model: art.TrainableModel, task: Task, settings: QuickstartSettings, folder: QuickstartFolder
) -> Evaluation:
    """Rollouts of fresh scenarios with the newest adapter, which are saved as those of `step`."""
    limit = concurrency(settings)
    trajectories = await art.gather_trajectories(
        [
            rollout_scenario(
                limit, model, task, task.scenario(EVALUATION_SEED, index), evaluation_seed(settings, index)
            )
            for index in range(settings.evaluation_games)
        ],
        pbar_desc="evaluating",
    )
    rollouts = [rollout_row(task, index, trajectory) for index, trajectory in enumerate(trajectories)]
    evaluation = Evaluation.from_rows([scores(trajectory) for trajectory in trajectories])
    folder.save_evaluation(step, evaluation, rollouts)
    return evaluation


def scores(trajectory: art.Trajectory) -> dict[str, float]:
    """The reward and the task's own metrics, without those that gathering adds."""
    metrics = {
        name: float(value) for name, value in trajectory.metrics.items() if name not in ADDED_BY_GATHERING
    }
    return {"reward": reward_of(trajectory), **metrics}


def reward_of(trajectory: art.Trajectory) -> float:
    assert not isinstance(trajectory.reward, art.Unscored), "these tasks score every rollout"
    return trajectory.reward


def rollout_row(task: Task, index: int, trajectory: art.Trajectory) -> dict[str, Any]:
    row: dict[str, Any] = {"index": index, "reward": reward_of(trajectory)}
    if index < KEPT_TRANSCRIPTS:
        row["transcript"] = trajectory.metadata[SHOW]
    return row


def concurrency(settings: QuickstartSettings) -> asyncio.Semaphore:
    """One request at a time, computed from its first token, makes rounding repeatable; otherwise the engine
    decides."""
    return asyncio.Semaphore(1 if settings.deterministic else settings.groups * settings.group_size)


async def rollout_scenario(
    limit: asyncio.Semaphore, model: art.TrainableModel, task: Task, scenario: Any, seed: int | None
) -> art.Trajectory:
    most = tasks.defaults_of(task, model.base_model).max_tokens
    async with limit:
        return await task.rollout(model, scenario, seed=seed, max_tokens=most)


def request_seed(settings: QuickstartSettings, step: int, index: int, number: int) -> int | None:
    """A seed that depends on what is asked, never on when: (run, step, scenario, number)."""
    if not settings.deterministic:
        return None
    place = (step * settings.groups + index) * settings.group_size + number
    return settings.seed * 1_000_000_007 + place


def evaluation_seed(settings: QuickstartSettings, index: int) -> int | None:
    return None if not settings.deterministic else EVALUATION_SEED + index


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
