"""`art harbor`: what Harbor's tasks give without a model."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from art.cli.model_verbs import readable_errors

if TYPE_CHECKING:
    from art_extensions.harbor.environment import HarborEnvironment

harbor = typer.Typer(
    name="harbor",
    help="Task folders of Harbor: check them before you train on them.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@harbor.callback()
def group() -> None:
    """Names the group: with one verb alone, typer would leave it out."""


@harbor.command("check")
def check_tasks(
    tasks: Annotated[str, typer.Argument(help="A task folder, a folder of them, or a dataset.")],
    sandbox: Annotated[
        str, typer.Option(help="jail, docker, podman, daytona, e2b, modal, runloop or MODULE:CLASS.")
    ] = "jail",
    python: Annotated[
        str | None, typer.Option(help="The interpreter that has Harbor, for all sandboxes but the jail.")
    ] = None,
    registry: Annotated[str | None, typer.Option(help="A registry file, to name a dataset.")] = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="In the jail, go on where a RUN of the Dockerfile fails.")
    ] = False,
) -> None:
    """Run each task's own solution, and nothing at all, and print the two rewards.

    A task can teach something if its solution earns more than nothing does. Exit code 1 where one does not.
    `art harbor check tasks/` checks all tasks of a folder.
    """
    from art_extensions.harbor.environment import HarborEnvironment

    with readable_errors():
        environment = HarborEnvironment(
            tasks, sandbox=sandbox, python=python, registry=registry, keep_going=keep_going
        )
        useless = asyncio.run(_check(environment))
    raise typer.Exit(1 if useless else 0)


async def _check(environment: HarborEnvironment) -> int:
    """Prints a line for each task. Returns the number of those that teach nothing."""
    from art.errors import EnvironmentFailedError
    from art.types import Unscored

    useless = 0
    for scenario in [*environment.scenarios("train"), *environment.scenarios("val")]:
        rewards: list[float | str] = []
        for agent in ("oracle", "nop"):
            try:
                reward = await environment.score(scenario, agent)
            except EnvironmentFailedError as error:
                reward = Unscored(str(error))
            rewards.append(reward.reason if isinstance(reward, Unscored) else reward)
        oracle, nothing = rewards
        teaches = isinstance(oracle, float) and isinstance(nothing, float) and oracle > nothing
        useless += not teaches
        shown = [f"{one:g}" if isinstance(one, float) else one for one in rewards]
        typer.echo(f"{scenario.data['task']}: solution {shown[0]}, nothing {shown[1]}")
    return useless
