"""A run of several policies: held-out episodes before, training, held-out episodes after, and its folder.

The folder has `run.json` (what the run was started with), a row for each step in `steps.jsonl`, one for each
evaluation in `evaluations.jsonl`, the rollouts of each role's evaluations in a folder of the role, and the
report.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar
from urllib.parse import quote

from art.backend import Keyword
from art.client.options.learning_rates import LORA_RATE
from art.environments.adapters.environment import ROLLOUT_S
from art.errors import ConfigurationError
from art.runs.comparison import Comparison, compare
from art.runs.environment_run import EnvironmentReport, EnvironmentSettings, mean_reward_of, scenarios_of
from art.runs.folder import STEPS, AboveZero, JudgedRunFolder
from art.runs.loop import EvaluationLog
from art.runs.report import interval, shown
from art.tracking.model_files import append_line, read_history
from art.types import TrainConfig
from art_extensions.policies.roles import RolesStep, frozen_at, gather_roles, train_policies

if TYPE_CHECKING:
    from art.environments.adapters.environment import Scenario
    from art.model import Model, TrainableModel
    from art.trajectories import TrajectoryGroup
    from art_extensions.policies.roles import RolesEnvironment

EVALUATIONS = "evaluations.jsonl"


@dataclass(frozen=True, kw_only=True)
class PolicySettings(EnvironmentSettings):
    """The settings of a run of several policies: those of `art train`, less the ones for schedules of the
    learning rate and for the choice of scenarios.
    """

    ENTRY: ClassVar[str] = "policies"
    OWN: ClassVar[str] = "give it another --project"
    MAY_CHANGE: ClassVar[frozenset[str]] = EnvironmentSettings.MAY_CHANGE | {"deadline"}

    steps: Annotated[int, Keyword(least=0)] = 50
    """The steps that each trained model has at the end."""
    learning_rate: AboveZero = LORA_RATE
    """The learning rate of all models. Default: that of the base model, as `art train` has it."""
    deadline: AboveZero = ROLLOUT_S
    """Seconds an episode may take."""


@dataclass(frozen=True, kw_only=True)
class Policies:
    """The players of a run: one for each role."""

    models: Mapping[str, TrainableModel[Any, Any]]
    """The model of each role; roles of one name have one model."""
    frozen: Mapping[str, int | None]
    """The roles that are not trained, each with the step that plays; None: the newest."""

    @property
    def trained(self) -> dict[str, TrainableModel[Any, Any]]:
        """Returns the models that learn, by their names."""
        return {model.name: model for role, model in self.models.items() if role not in self.frozen}

    def players(self) -> dict[str, Model[Any, Any]]:
        """Returns the registered model of each role, or the checkpoint that plays it."""
        return {
            role: model if (step := self.frozen.get(role)) is None else frozen_at(model, step)
            for role, model in self.models.items()
        }

    async def steps(self) -> dict[str, int]:
        """Returns the step of each role's player."""
        return {
            role: await model.get_step() if (step := self.frozen.get(role)) is None else step
            for role, model in self.models.items()
        }


@dataclass(frozen=True, kw_only=True)
class RoleResult:
    """One role before and after."""

    model: str
    before_step: int
    after_step: int
    comparison: Comparison

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without the scenarios one by one."""
        both = self.comparison
        sides = {"before": both.before.estimate, "after": both.after.estimate, "difference": both.judged}
        return {
            **{"model": self.model, "before_step": self.before_step, "after_step": self.after_step},
            "verdict": both.verdict,
            **{name: None if one is None else asdict(one) for name, one in sides.items()},
            "failed": [both.before.failed, both.after.failed],
        }

    def row(self, role: str) -> str:
        """A row of the report's table."""
        both = self.comparison
        sides = [
            f"{shown(side.judged)} | {interval(side.estimate)} | {side.failed}"
            for side in (both.before, both.after)
        ]
        steps = f"{self.before_step} to {self.after_step}"
        return f"| {role} | `{self.model}` | {steps} | {' | '.join(sides)} |"

    def verdict(self, role: str) -> str:
        """A line of the report."""
        both = self.comparison
        words = EnvironmentReport.VERDICTS[both.verdict].format(count=len(both.tasks), noun="scenario")
        return f"- {role}: {words}{'' if both.judged is None else f': {both.judged.signed()}'}."


@dataclass(frozen=True, kw_only=True)
class PoliciesReport:
    """A finished run of several policies."""

    environment: str
    project: str
    folder: Path
    steps: Sequence[Mapping[str, Any]]
    """`RolesStep` as plain values."""
    roles: Mapping[str, RoleResult]
    evaluations: Sequence[Mapping[str, Any]]
    """The step of each role's player, and its mean reward with its interval."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `report.json` has them."""
        return {
            **{"environment": self.environment, "project": self.project, "steps": list(self.steps)},
            "roles": {role: one.to_dict() for role, one in self.roles.items()},
            **{"evaluations": list(self.evaluations), "folder": str(self.folder)},
        }

    def to_markdown(self) -> str:
        """Returns the text of `report.md`."""
        heads = ["role", "model", "steps", *("before", "95 % interval", "failed")]
        heads += ["after", "95 % interval", "failed"]
        names = list(self.roles)
        rewards = [[row["step"], *(shown(row["rewards"][name]) for name in names)] for row in self.steps]
        rows = [
            [*map(str, row), ", ".join(one["trained"]) or "none"]
            for row, one in zip(rewards, self.steps, strict=True)
        ]
        return "\n".join(
            [
                f"# {self.project}\n\nEnvironment: `{self.environment}`\n\n## Validation\n",
                f"| {' | '.join(heads)} |",
                f"|{'---|' * 3}{'---:|' * 6}",
                *(one.row(role) for role, one in self.roles.items()),
                "",
                *(one.verdict(role) for role, one in self.roles.items()),
                "\n## Training\n",
                f"| {' | '.join(['step', *names, 'trained'])} |",
                f"|{'---:|' * (len(names) + 1)}---|",
                *(f"| {' | '.join(row)} |" for row in rows),
                "",
            ]
        )


@dataclass(frozen=True, kw_only=True)
class PoliciesRun:
    """One run: what is done already is read from its folder, the rest is done."""

    environment: RolesEnvironment
    options: Mapping[str, Any]
    """The environment's, as JSON values."""
    policies: Policies
    project: str
    folder: JudgedRunFolder
    settings: PolicySettings
    tell: Callable[[str], None]

    @cached_property
    def _val(self) -> Sequence[Scenario]:
        return scenarios_of(self.environment, "val")[: self.settings.eval_scenarios]

    def open(self) -> None:
        """Starts a new run, or resumes the one in the folder.

        Raises ConfigurationError where that one has other models, options or settings, where it is within
        steps of other frozen roles, and where a split has no scenarios or two of one id.
        """
        train, val = scenarios_of(self.environment, "train"), self._val
        models = self.policies.models
        now = {
            **{"environment": self.environment.name, "options": self.options},
            "policies": {role: model.base_model for role, model in models.items()},
            "names": {role: model.name for role, model in models.items()},
        }
        self._check_frozen()
        if self.folder.open(now, self.settings):
            self.tell(f"going on with the run in {self.folder.path}")
        self.folder.save_run({**(self.folder.run() or {}), "frozen": self.policies.frozen})
        self.tell(f"{self.environment.name}: {len(train)} scenarios to train on, {len(val)} to validate with")

    def _check_frozen(self) -> None:
        """Raises ConfigurationError where others would be frozen before the run has made its steps."""
        begun, made = self.folder.run(), self._steps()
        if begun is None or not made or begun["frozen"] == self.policies.frozen:
            return
        last, steps = made[-1]["step"], begun["settings"]["steps"]
        if last < steps:
            raise ConfigurationError(
                f"frozen={_words(self.policies.frozen)}, but the run was started with "
                f"{_words(begun['frozen'])}, and has made {last} of its {steps} steps: leave it as it was "
                f"until they are made, end it there with --steps {last}, or {self.settings.OWN}"
            )

    def _steps(self) -> list[dict[str, Any]]:
        return list(read_history(self.folder.path / STEPS))

    def _evaluations(self) -> list[dict[str, Any]]:
        return list(read_history(self.folder.path / EVALUATIONS))

    async def learn(self) -> PoliciesReport:
        """Runs all parts that need the models, which are registered. Raises what `train_policies` raises."""
        chosen = self.settings
        if not self._evaluations():
            await self._evaluate()
        done = min([await model.get_step() for model in self.policies.trained.values()])
        between = range(chosen.eval_every, chosen.steps, chosen.eval_every) if chosen.eval_every else ()
        for end in [*(step for step in between if step >= done), chosen.steps]:
            await train_policies(
                self.environment,
                self.policies.players(),
                frozen=[role for role, step in self.policies.frozen.items() if step is None],
                config=TrainConfig(learning_rate=chosen.learning_rate),
                on_step=self._note,
                steps=end,
                groups_per_step=chosen.groups_per_step,
                **self._limits(chosen.group_size, chosen.groups_per_step),
            )
            await self._evaluate()
        report = await self._report()
        self.folder.save_report(report.to_markdown(), report.to_dict())
        return report

    def _limits(self, size: int, scenarios: int) -> dict[str, Any]:
        """Returns keywords of `gather_roles` for groups of `size` episodes of so many scenarios."""
        chosen = self.settings
        return {
            **{"group_size": size, "seed": chosen.seed, "temperature": chosen.temperature},
            **{"max_tokens": chosen.max_tokens, "concurrency": chosen.concurrency},
            "max_exceptions": round(chosen.max_failed * size * scenarios),
            "deadline_s": chosen.deadline,
        }

    def _note(self, step: RolesStep) -> None:
        append_line(self.folder.path / STEPS, json.dumps(asdict(step)))
        self.tell(step_line(step, self.settings.steps))

    async def _evaluate(self) -> None:
        """Plays the held-out scenarios with the players of now; once."""
        steps, made = await self.policies.steps(), self._evaluations()
        if any(one["steps"] == steps for one in made):
            return
        groups = await gather_roles(
            self.environment,
            self.policies.players(),
            self._val,
            **self._limits(self.settings.eval_group_size, len(self._val)),
        )
        await self._log(groups)
        rewards = {}
        for role, found in groups.items():
            rows = [group.trajectories for group in found]
            self._role(role).save_evaluation(len(made), rows)
            mean = mean_reward_of(rows)
            rewards[role] = None if mean is None else asdict(mean)
        append_line(self.folder.path / EVALUATIONS, json.dumps({"steps": steps, "rewards": rewards}))
        self.tell(evaluation_line(steps, rewards))

    async def _log(self, groups: Mapping[str, Sequence[TrajectoryGroup]]) -> None:
        """Logs the groups of its roles in the history of each model that learns."""
        for name, model in self.policies.trained.items():
            own = [role for role, one in self.policies.models.items() if one.name == name]
            played = [group for role in own for group in groups[role]]
            await EvaluationLog(model).add(await model.get_step(), played)

    def _role(self, role: str) -> JudgedRunFolder:
        return JudgedRunFolder(self.folder.path / f"role-{quote(role, safe='')}")

    async def _report(self) -> PoliciesReport:
        """Compares the first evaluation with that of the players of now."""
        steps, made = await self.policies.steps(), self._evaluations()
        last = next(place for place, one in enumerate(made) if one["steps"] == steps)
        roles = {}
        for role, model in self.policies.models.items():
            compared = await compare(
                [scenario.id for scenario in self._val],
                self._role(role).evaluation(0) or [],
                self._role(role).evaluation(last) or [],
                per_task=self.settings.eval_group_size,
                judge=None,
                rewarded=True,
            )
            roles[role] = RoleResult(
                model=f"{self.project}/{model.name}",
                before_step=made[0]["steps"][role],
                after_step=steps[role],
                comparison=compared,
            )
        return PoliciesReport(
            environment=self.environment.name,
            project=self.project,
            folder=self.folder.path,
            steps=self._steps(),
            roles=roles,
            evaluations=made,
        )


def _words(frozen: Mapping[str, int | None]) -> list[str]:
    return [role if step is None else f"{role}={step}" for role, step in frozen.items()]


def step_line(step: RolesStep, steps: int) -> str:
    """Returns a step in a line: step 3/20: seller 0.500, buyer no reward; trained seller."""
    rewards = [
        f"{role} {'no reward' if reward is None else f'{reward:.3f}'}"
        for role, reward in step.rewards.items()
    ]
    failed = f"; {step.failed} episodes failed" if step.failed else ""
    return (
        f"step {step.step}/{steps}: {', '.join(rewards)}; trained {', '.join(step.trained) or 'none'}{failed}"
    )


def evaluation_line(steps: Mapping[str, int], rewards: Mapping[str, Mapping[str, Any] | None]) -> str:
    """Returns an evaluation in a line: validation: seller of step 3 0.500, buyer of step 0 no reward."""
    found = [
        f"{role} of step {steps[role]} {'no reward' if one is None else '{:.3f}'.format(one['mean'])}"
        for role, one in rewards.items()
    ]
    return f"validation: {', '.join(found)}"
