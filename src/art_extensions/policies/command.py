"""`art policies`: several models learn the roles of one environment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from art.cli.config_file import ConfigFile
from art.cli.model_verbs import EnvironmentOption
from art.cli.run_options import (
    DATA_DIR,
    DataDir,
    JsonFile,
    Project,
    options_from,
    plain_console,
    run_resumable,
    write_json,
)
from art.errors import ConfigurationError, require_extra

if TYPE_CHECKING:
    from rich.console import Console

    from art.model import Model, TrainableModel
    from art_extensions.policies.roles import RolesEnvironment, RolesStep

Environment = Annotated[
    str, typer.Option(metavar="MODULE:NAME", help="An environment with roles: an object, or what makes one.")
]
Policy = Annotated[
    list[str],
    typer.Option(
        metavar="ROLE=BASE_MODEL",
        help="The base model of a role: a hub name, a folder, a built-in one. One for each role.",
    ),
]
RoleName = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ROLE=NAME",
        help="The name of a role's model; roles of one name share it. Default: the role's name.",
    ),
]
Frozen = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ROLE[=STEP]",
        help="A role that is played and not trained, by the model's newest step or by one.",
    ),
]
Steps = Annotated[int, typer.Option(min=1, help="The steps that each trained model has at the end.")]
GroupsPerStep = Annotated[int, typer.Option(min=1, help="Scenarios of a step.")]
GroupSize = Annotated[int, typer.Option(min=2, help="Episodes of a scenario.")]
LearningRate = Annotated[
    float | None,
    typer.Option(
        help="The learning rate of all models. Default: that of the base model, as `art train` has it."
    ),
]
MaxTokens = Annotated[
    int | None, typer.Option(min=1, help="The most tokens of one completion. Default: the environment's.")
]
MaxExceptions = Annotated[int, typer.Option(min=0, help="Episodes of a step that may fail.")]


def policies(
    environment: Environment,
    policy: Policy,
    config: ConfigFile = None,
    environment_option: EnvironmentOption = None,
    name: RoleName = None,
    frozen: Frozen = None,
    project: Project = "policies",
    steps: Steps = 50,
    groups_per_step: GroupsPerStep = 8,
    group_size: GroupSize = 8,
    learning_rate: LearningRate = None,
    max_tokens: MaxTokens = None,
    temperature: Annotated[float, typer.Option(min=0, help="The temperature of the episodes.")] = 1.0,
    max_exceptions: MaxExceptions = 0,
    seed: Annotated[int, typer.Option(help="The seed of scenarios and episodes.")] = 0,
    engine: Annotated[str, typer.Option(help="The engine: builtin or vllm.")] = "builtin",
    data_dir: DataDir = DATA_DIR,
    json_file: JsonFile = None,
) -> None:
    """Train several models in one environment, each in its roles.

    To resume after a stop or a kill, repeat the command. With a higher --steps, the run continues.

    `art policies --config market.yaml` reads the options from a file. `art policies --environment
    market:Market --policy seller=art/nano-games --policy buyer=art/nano-games --frozen buyer` trains the
    seller alone.
    """
    run = PoliciesRun(
        environment=environment,
        options=environment_option or (),
        bases=policy,
        names=name or (),
        frozen=frozen or (),
        project=project,
        learning_rate=learning_rate,
        engine=engine,
        data_dir=data_dir,
        settings={
            **{"steps": steps, "groups_per_step": groups_per_step, "group_size": group_size, "seed": seed},
            **{"temperature": temperature, "max_tokens": max_tokens, "max_exceptions": max_exceptions},
        },
    )
    console = plain_console()
    raise typer.Exit(run_resumable(lambda: run.work(console, json_file), console))


@dataclass(frozen=True, kw_only=True)
class PoliciesRun:
    """A run of several policies, as the command line asks for it."""

    environment: str
    options: Sequence[str]
    bases: Sequence[str]
    names: Sequence[str]
    frozen: Sequence[str]
    project: str
    learning_rate: float | None
    engine: str
    data_dir: Path
    settings: Mapping[str, Any]
    """Keywords of `train_policies`."""

    async def work(self, console: Console, json_file: Path | None) -> None:
        """Trains and reports. Raises ConfigurationError, and what `train_policies` raises."""
        require_extra("local", "art policies")
        from art.client.backends.local_backend import LocalBackend
        from art.runs.environment_run import name_for
        from art.types import TrainConfig
        from art_extensions.policies.roles import find_roles_environment, train_policies

        found = find_roles_environment(self.environment, options_from("--environment-option", self.options))
        try:
            models, kept = self._models(found), self._frozen()
            if {*kept} == {*models}:
                raise ConfigurationError("every role is in --frozen: leave out one, which is trained")
            config = TrainConfig(learning_rate=self._rate(models, kept))
            path = self.data_dir / self.project / "policies" / f"{name_for(found.name)}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)

            def note(step: RolesStep) -> None:
                with path.open("a", encoding="utf-8") as record:
                    record.write(json.dumps(asdict(step)) + "\n")
                console.print(step_line(step, self.settings["steps"]), markup=False)

            server = {} if self.engine == "builtin" else {"engine": {"name": self.engine}}
            async with LocalBackend(path=str(self.data_dir), server_options=server) as backend:
                for model in {one.name: one for one in models.values()}.values():
                    await model.register(backend)
                await train_policies(
                    found,
                    self._players(models, kept),
                    frozen=[role for role, step in kept.items() if step is None],
                    config=config,
                    on_step=note,
                    **self.settings,
                )
        finally:
            await found.close()
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        console.print(f"{len(rows)} steps in {path}", markup=False)
        if json_file is not None:
            write_json(json_file, {"environment": found.name, "project": self.project, "steps": rows})

    def _models(self, environment: RolesEnvironment) -> dict[str, TrainableModel[Any, Any]]:
        """Returns the model of each role. Raises ConfigurationError."""
        from art.model import TrainableModel
        from art_extensions.policies.roles import check_roles

        bases, names = _texts_of("--policy", self.bases), _texts_of("--name", self.names)
        check_roles(environment, bases, [*names, *self._frozen()])
        models: dict[str, TrainableModel[Any, Any]] = {}
        for role, base in bases.items():
            name = names.get(role, role)
            one = next((model for model in models.values() if model.name == name), None)
            if one is not None and one.base_model != base:
                raise ConfigurationError(
                    f"--policy {role}={base}: the model {name!r} has the base model {one.base_model!r} in "
                    "another role: give both one base model, or --name another one"
                )
            models[role] = one or TrainableModel(
                name=name, project=self.project, base_model=base, base_path=str(self.data_dir)
            )
        return models

    def _frozen(self) -> dict[str, int | None]:
        """Returns the roles that are not trained, each with its step; None: the newest."""
        found: dict[str, int | None] = {}
        for word in self.frozen:
            role, equals, step = word.partition("=")
            if equals and not step.isdecimal():
                raise ConfigurationError(f"--frozen {word!r}: write ROLE, or ROLE=STEP with a step's number")
            found[role] = int(step) if equals else None
        return found

    def _rate(self, models: Mapping[str, TrainableModel[Any, Any]], kept: Mapping[str, int | None]) -> float:
        """Returns the learning rate. Raises ConfigurationError where base models would begin with others."""
        from art.client.options.learning_rates import starting_rate

        if self.learning_rate is not None:
            return self.learning_rate
        trained = [model.base_model for role, model in models.items() if role not in kept]
        rates = {base: starting_rate(base) for base in trained}
        if len({*rates.values()}) > 1:
            raise ConfigurationError(
                f"the base models begin with other learning rates, {rates}: give --learning-rate"
            )
        return rates[trained[0]]

    def _players(
        self, models: Mapping[str, TrainableModel[Any, Any]], kept: Mapping[str, int | None]
    ) -> dict[str, Model[Any, Any]]:
        """Returns who plays each role: its model, or a checkpoint of it."""
        from art_extensions.policies.roles import frozen_at

        return {
            role: model if (step := kept.get(role)) is None else frozen_at(model, step)
            for role, model in models.items()
        }


def _texts_of(option: str, words: Sequence[str]) -> dict[str, str]:
    """Returns role -> text of ROLE=TEXT words. Raises ConfigurationError, which names the option."""
    found: dict[str, str] = {}
    for word in words:
        role, equals, text = word.partition("=")
        if not role or not equals or not text or role in found:
            raise ConfigurationError(f"{option} {word!r}: write ROLE=..., each role once")
        found[role] = text
    return found


def step_line(step: RolesStep, steps: int) -> str:
    """Returns a step in a line: step 3/20: seller 0.500, buyer no reward; trained seller."""
    rewards = [
        f"{role} {'no reward' if reward is None else f'{reward:.3f}'}"
        for role, reward in step.rewards.items()
    ]
    failed = f"; {step.failed} episodes failed" if step.failed else ""
    return f"step {step.step}/{steps}: {', '.join(rewards)}; trained {', '.join(step.trained)}{failed}"
