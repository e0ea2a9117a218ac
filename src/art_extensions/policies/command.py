"""`art policies`: several models learn the roles of one environment."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from art.cli.config_file import ConfigFile
from art.cli.model_verbs import EnvironmentOption
from art.cli.run_options import (
    DATA_DIR,
    DataDir,
    Engine,
    JsonFile,
    Project,
    options_from,
    plain_console,
    run_resumable,
    settings_verb,
    show_report,
)
from art.errors import ConfigurationError, require_extra

if TYPE_CHECKING:
    from rich.console import Console

    from art.model import TrainableModel
    from art.runs.folder import JudgedRunFolder
    from art_extensions.policies.roles import RolesEnvironment
    from art_extensions.policies.run import Policies, PoliciesReport

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
SETTINGS = "art_extensions.policies.run:PolicySettings"
Environment = Annotated[
    str,
    typer.Option(
        metavar="MODULE:NAME", help="An environment with roles: an object, what makes one, or verifiers:NAME."
    ),
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


@settings_verb(
    app,
    SETTINGS,
    leave_out=("warmup_steps", "final_share", "max_refills", "thin"),
    unset=("learning_rate",),
)
def policies(
    environment: Environment,
    policy: Policy,
    config: ConfigFile = None,
    environment_option: EnvironmentOption = None,
    name: RoleName = None,
    frozen: Frozen = None,
    project: Project = "policies",
    engine: Engine = "builtin",
    data_dir: DataDir = DATA_DIR,
    json_file: JsonFile = None,
    **settings: Any,
) -> None:
    """Train several models in one environment, each in its roles, and compare each role before and after on
    validation scenarios.

    To resume after a stop or a kill, repeat the command. With a higher --steps, the run continues.

    `art policies --config market.yaml` reads the options from a file. `art policies --environment
    market:Market --policy seller=art/nano-games --policy buyer=art/nano-games --frozen buyer` trains the
    seller alone.
    """
    asked = PoliciesCommand(
        environment=environment,
        options=environment_option or (),
        bases=policy,
        names=name or (),
        frozen=frozen or (),
        project=project,
        engine=engine,
        data_dir=data_dir,
        settings=settings,
    )
    console = plain_console()
    raise typer.Exit(run_resumable(lambda: asked.work(console, json_file), console))


@dataclass(frozen=True, kw_only=True)
class PoliciesCommand:
    """A run of several policies, as the command line asks for it."""

    environment: str
    options: Sequence[str]
    bases: Sequence[str]
    names: Sequence[str]
    frozen: Sequence[str]
    project: str
    engine: str
    data_dir: Path
    settings: Mapping[str, Any]
    """Keywords of `PolicySettings`."""

    async def work(self, console: Console, json_file: Path | None) -> None:
        """Trains and reports. Raises ConfigurationError, and what `train_policies` raises."""
        require_extra("local", "art policies")
        from art_extensions.policies.roles import find_roles_environment

        options = options_from("--environment-option", self.options)
        found = find_roles_environment(self.environment, options)
        try:
            report = await self._run(found, options, console)
        finally:
            await found.close()
        show_report(console, report, json_file)

    async def _run(
        self, found: RolesEnvironment, options: Mapping[str, Any], console: Console
    ) -> PoliciesReport:
        from art.client.backends.local_backend import LocalBackend
        from art.runs.environment_run import name_for
        from art.runs.folder import JudgedRunFolder
        from art_extensions.policies.run import Policies, PoliciesRun, PolicySettings

        frozen = _frozen(self.frozen)
        chosen = Policies(models=self._models(found, frozen), frozen=frozen)
        if not chosen.trained:
            raise ConfigurationError("every role is in --frozen: leave out one, which is trained")
        folder = JudgedRunFolder(self.data_dir / self.project / "policies" / name_for(found.name))
        run = PoliciesRun(
            environment=found,
            options=options,
            policies=chosen,
            project=self.project,
            folder=folder,
            settings=folder.settings(PolicySettings, self._first_base(chosen, folder), self.settings),
            tell=lambda text: console.print(text, markup=False),
        )
        run.open()
        server = {} if self.engine == "builtin" else {"engine": {"name": self.engine}}
        async with LocalBackend(path=str(self.data_dir), server_options=server) as backend:
            for model in {one.name: one for one in chosen.models.values()}.values():
                await model.register(backend)
            return await run.learn()

    def _models(
        self, environment: RolesEnvironment, frozen: Collection[str]
    ) -> dict[str, TrainableModel[Any, Any]]:
        """Returns the model of each role. Raises ConfigurationError."""
        from art.model import TrainableModel
        from art_extensions.policies.roles import check_roles

        bases, names = _texts_of("--policy", self.bases), _texts_of("--name", self.names)
        check_roles(environment, bases, [*names, *frozen])
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

    def _first_base(self, policies: Policies, folder: JudgedRunFolder) -> str:
        """Returns a base model that begins with the learning rate of all. Raises ConfigurationError where
        they begin with several, and neither the call nor an earlier one has chosen.
        """
        from art.client.options.learning_rates import starting_rate

        rates = {model.base_model: starting_rate(model.base_model) for model in policies.trained.values()}
        if len({*rates.values()}) > 1 and self.settings["learning_rate"] is None and folder.run() is None:
            raise ConfigurationError(
                f"the base models begin with other learning rates, {rates}: give --learning-rate"
            )
        return next(iter(rates))


def _frozen(words: Sequence[str]) -> dict[str, int | None]:
    """Returns the roles that are not trained, each with its step; None: the newest."""
    found: dict[str, int | None] = {}
    for word in words:
        role, equals, step = word.partition("=")
        if equals and not step.isdecimal():
            raise ConfigurationError(f"--frozen {word!r}: write ROLE, or ROLE=STEP with a step's number")
        found[role] = int(step) if equals else None
    return found


def _texts_of(option: str, words: Sequence[str]) -> dict[str, str]:
    """Returns role -> text of ROLE=TEXT words. Raises ConfigurationError, which names the option."""
    found: dict[str, str] = {}
    for word in words:
        role, equals, text = word.partition("=")
        if not role or not equals or not text or role in found:
            raise ConfigurationError(f"{option} {word!r}: write ROLE=..., each role once")
        found[role] = text
    return found
