"""`art.train_environment`: a model is trained on an environment by name, and compared before and after.

    report = await art.train_environment("reasoning-gym:letter_counting", "art/nano", steps=20)

A task is a scenario, and its reward is the environment's. The run is a `TrainingRun` like that of MCP-RL and
AutoRL: the same folder, the same steps, resumed by the same call. Scenarios are drawn by a `ScenarioSampler`;
what it has seen is in the rows of the steps.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from art.backend import Keyword
from art.environments.adapters.environment import SCENARIO_ID, NamedEnvironment, Scenario
from art.environments.adapters.registry import find_environment
from art.environments.adapters.scenario_sampler import ScenarioSampler
from art.errors import ConfigurationError, EnvironmentFailedError
from art.runs.comparison import Estimate, Verdict
from art.runs.folder import ADDED_BY_GATHERING, Count, JudgedRunFolder, RunSettings, Share
from art.runs.report import RunReport, interval
from art.runs.training_run import (
    LEFT_OUT,
    OnProgress,
    TaskRollouts,
    TrainingRun,
    model_to_train,
    runs_root,
    serve_model,
)
from art.tracking.folders import stored_name
from art.tracking.rollout_figures import scores
from art.trajectories import Trajectory
from art.types import known_reward

if TYPE_CHECKING:
    from art.backend import Backend
    from art.model import TrainableModel

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class EnvironmentSettings(RunSettings):
    """The settings of a run on an environment, without the environment and the model."""

    ENTRY: ClassVar[str] = "train_environment"
    MAY_CHANGE: ClassVar[frozenset[str]] = RunSettings.MAY_CHANGE | {"eval_every"}

    steps: Annotated[int, Keyword(least=0)] = 50
    """Training steps."""
    groups_per_step: Count = 8
    """Scenarios per step."""
    group_size: Annotated[int, Keyword(least=2)] = 8
    """Rollouts per scenario of a step."""
    max_tokens: Annotated[int | None, Keyword(least=1)] = None
    """The most tokens of one completion. Default: the environment's own."""
    concurrency: Count = 64
    """Concurrent rollouts."""
    eval_scenarios: Count = 100
    """Validation scenarios, for the comparison of before and after."""
    eval_group_size: Count = 1
    """Rollouts of each validation scenario, with the same seeds each time."""
    eval_every: Annotated[int, Keyword(least=0)] = 0
    """Steps between further evaluations during training. 0: only before and after."""
    thin: Share = 0.1
    """Sampling weight of scenarios with no reward variance in their last two groups. 1: all scenarios are
    drawn alike."""
    seed: int = 0
    """Seed of the order of scenarios and of the evaluations."""

    def total_steps(self, num_train: int) -> int:
        """Returns the given steps."""
        return self.steps


class EnvironmentRollouts(TaskRollouts[Scenario]):
    """A task is a scenario of an environment."""

    def __init__(
        self, model: TrainableModel[Any, Any], settings: EnvironmentSettings, environment: NamedEnvironment
    ) -> None:
        super().__init__(model, settings)
        self._environment = environment

    async def rollout(self, task: Scenario, *, seed: int | None) -> Trajectory:
        limits = self.limits
        one = await self._environment.rollout(
            self.model, task, seed=seed, temperature=limits.temperature, max_tokens=limits.max_tokens
        )
        try:
            known_reward(one)
        except ConfigurationError as error:  # of one rollout: the run goes on
            raise EnvironmentFailedError(f"environment {self._environment.name!r}: {error}") from error
        return one

    def text_of(self, task: Scenario) -> str:
        return task.id

    def metadata_of(self, task: Scenario) -> dict[str, float | int | str | bool | None]:
        return {SCENARIO_ID: task.id}

    def weight_of(self, task: Scenario) -> float:
        return task.weight

    def figures_of(self, trajectory: Trajectory) -> dict[str, float]:
        metrics = trajectory.metrics
        return {name: float(metrics[name]) for name in metrics if name not in ADDED_BY_GATHERING}


@dataclass(frozen=True, kw_only=True)
class EnvironmentReport(RunReport):
    """A finished run."""

    NOUN: ClassVar[str] = "scenario"
    VERDICTS: ClassVar[Mapping[Verdict, str]] = {
        "better": "The reward is higher after training",
        "worse": "The reward is lower after training",
        "no difference shown": "No difference could be shown (validation {noun}s: {count})",
        "not judged": "No {noun} has a reward both before and after",
    }
    SCORE: ClassVar[str] = "reward"
    SCALE: ClassVar[str] = ""
    NUMBER: ClassVar[str] = "eval_scenarios"

    environment: str
    options: Mapping[str, Any]
    evaluations: Mapping[int, Estimate]
    """Step -> the mean reward of a validation scenario."""

    def to_dict(self) -> dict[str, Any]:
        return {
            **super().to_dict(),
            "options": dict(self.options),
            "evaluations": {step: vars(one) for step, one in self.evaluations.items()},
        }

    def opening(self) -> list[str]:
        options = "".join(f", `{name}={value!r}`" for name, value in self.options.items())
        return [f"Environment: `{self.environment}`{options}\n"]

    def material(self) -> list[str]:
        rows = [
            f"| {step} | {one.mean:.3f} | {interval(one)} | {one.count} |"
            for step, one in self.evaluations.items()
        ]
        heads = ["## Validation\n", "| step | reward | 95 % interval | scenarios |", "|---:|---:|---:|---:|"]
        left_out = sum(row.counts.get(LEFT_OUT, 0.0) for row in self.steps)
        settled = self.steps[-1].counts.get("scenarios/settled", 0.0) if self.steps else 0.0
        return [
            *heads,
            *rows,
            "",
            "## Scenarios\n",
            f"Without reward variance in their last groups, before the last step: {settled:.0f}. Left out "
            f"of steps for that reason: {left_out:.0f}.\n",
        ]


async def train_environment(
    environment: str | NamedEnvironment,
    model: TrainableModel[Any, Any] | str,
    *,
    name: str | None = None,
    project: str = "environments",
    environment_options: Mapping[str, Any] | None = None,
    backend: Backend | None = None,
    path: str | Path | None = None,
    tell: OnProgress | None = None,
    **settings: Any,
) -> EnvironmentReport:
    """Trains a model on the scenarios of an environment, and compares it before and after on others.

    environment: a name, such as "reasoning-gym:letter_counting", with `environment_options`, or an
    environment. model: a base model (a hub name, a folder or a built-in one), which is trained as `name` in
    `project`, or a `TrainableModel` of your own. name: by default made of the environment's name. backend:
    None is a `LocalBackend` under `path` (None: ./.art), closed at the end. tell: is given lines about the
    progress. settings: those of `EnvironmentSettings`.

    Steps and evaluations are in the model's log, and all else is in `<path>/<project>/train/<name>`. The same
    call resumes the run after a stop or a kill. Raises ConfigurationError, MissingExtraError, and what
    rollouts and the backend raise.
    """
    begin = time.monotonic()
    base_model = model if isinstance(model, str) else model.base_model
    found = _environment_of(environment, environment_options or {})
    try:
        if isinstance(model, str):
            root = runs_root(path)
            learner = model_to_train(root, name or name_for(found.name), project, model)
        else:
            root, learner = runs_root(path or model.base_path), model
        folder = JudgedRunFolder(root / learner.project / "train" / learner.name)
        chosen = folder.settings(EnvironmentSettings, base_model, settings)
        options = json.loads(json.dumps(environment_options or {}, default=lambda one: type(one).__name__))
        run = EnvironmentRun(found, options, folder, chosen, tell or _log.info)
        run.open(base_model)
        async with serve_model(learner, backend, root):
            return await run.learn(learner, begin)
    finally:
        await found.close()


def name_for(environment: str) -> str:
    """Returns the name of a model that learns an environment, if none is given.

    >>> name_for("reasoning-gym:letter_counting")
    'reasoning-gym-letter_counting'
    """
    return re.sub(r"[^\w.-]+", "-", environment).strip("-.")


def scenarios_of(environment: Any, split: str) -> Sequence[Scenario]:
    """Returns the scenarios. Raises ConfigurationError where there are none, or two of one id."""
    scenarios: Sequence[Scenario] = environment.scenarios(split)
    ids = {one.id for one in scenarios}
    if len(ids) < max(1, len(scenarios)):
        raise ConfigurationError(
            f"environment {environment.name!r} has {len(scenarios)} scenarios with {len(ids)} ids in split "
            f"{split!r}: it needs at least one, each with an id of its own"
        )
    return scenarios


def _environment_of(environment: str | NamedEnvironment, options: Mapping[str, Any]) -> NamedEnvironment:
    if isinstance(environment, str):
        return find_environment(environment, **options)
    if options:
        raise ConfigurationError(
            f"environment_options={dict(options)!r} are for an environment by name; {environment.name!r} is "
            "made already: give them to it instead"
        )
    return environment


class EnvironmentRun:
    """One run: what is done already is read from its folder, the rest is done."""

    def __init__(
        self,
        environment: NamedEnvironment,
        options: Mapping[str, Any],
        folder: JudgedRunFolder,
        settings: EnvironmentSettings,
        tell: OnProgress,
    ) -> None:
        """options: of the environment, as JSON values. Raises what `scenarios_of` raises."""
        self._environment, self._options = environment, options
        self._folder, self._settings, self._tell = folder, settings, tell
        self._train = scenarios_of(environment, "train")
        self._val = scenarios_of(environment, "val")[: settings.eval_scenarios]
        self._sampler = ScenarioSampler(
            self._train, key=lambda one: one.id, seed=settings.seed, thin=settings.thin
        )

    def open(self, base_model: str) -> None:
        """Starts a new run, or resumes the one in the folder.

        Raises ConfigurationError where that one is of another environment, base model or other settings.
        """
        now = {"environment": self._environment.name, "options": self._options, "base_model": base_model}
        if self._folder.open(now, self._settings):
            self._tell(f"going on with the run in {self._folder.path}")
        self._tell(
            f"{self._environment.name}: {len(self._train)} scenarios to train on, {len(self._val)} to "
            "validate with"
        )

    async def learn(self, model: TrainableModel[Any, Any], begin: float) -> EnvironmentReport:
        """Runs all parts that need the model. begin: when the call began, on the monotonic clock."""
        chosen = self._settings
        training = TrainingRun(
            folder=self._folder,
            rollouts=EnvironmentRollouts(model, chosen, self._environment),
            train=self._train,
            test=self._val,
            judge=None,
            referee=None,
            measure=None,
            tell=self._tell,
            sampler=self._sampler,
            eval_every=chosen.eval_every,
        )
        outcome = await training.run()
        report = EnvironmentReport(
            environment=self._environment.name,
            options=self._options,
            evaluations=self._evaluations(outcome.step),
            base_model=model.base_model,
            model=f"{model.project}/{stored_name(model)}",
            step=outcome.step,
            steps=outcome.steps,
            comparison=outcome.comparison,
            same_judge=False,
            costs={},
            seconds=time.monotonic() - begin,
            stopped=outcome.stopped,
            folder=self._folder.path,
        )
        self._folder.save_report(report.to_markdown(), report.to_dict())
        return report

    def _evaluations(self, last: int) -> dict[int, Estimate]:
        """Returns the mean reward of each evaluated step."""
        found = {step: self._folder.evaluation(step) for step in range(last + 1)}
        estimates = {step: mean_reward_of(rows) for step, rows in found.items() if rows is not None}
        return {step: one for step, one in estimates.items() if one is not None}


def mean_reward_of(scenarios: Sequence[Sequence[Trajectory]]) -> Estimate | None:
    """Returns the mean reward of a scenario, of those that have one; None if none has."""
    scored = [scores(rollouts) for rollouts in scenarios]
    return Estimate.from_scores([fmean(rewards) for rewards in scored if rewards])
