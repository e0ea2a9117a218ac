"""`art train`: a model learns an environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from art.cli.config_file import ConfigFile
from art.cli.model_verbs import EnvironmentOption, Harness
from art.cli.run_options import (
    DATA_DIR,
    BaseModel,
    DataDir,
    Engine,
    JsonFile,
    Project,
    environment_options_from,
    plain_console,
    run_resumable,
    show_report,
)
from art.errors import require_extra

Environment = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="An environment by name: tic-tac-toe, reasoning-gym:letter_counting, ..."
    ),
]
TrainedName = Annotated[
    str | None,
    typer.Option(
        help="The name of the trained model. The same name continues its run. Default: the environment's."
    ),
]


def train(
    environment: Environment,
    base_model: BaseModel,
    config: ConfigFile = None,
    environment_option: EnvironmentOption = None,
    harness: Harness = None,
    name: TrainedName = None,
    project: Project = "environments",
    engine: Engine = "builtin",
    data_dir: DataDir = DATA_DIR,
    json_file: JsonFile = None,
    **settings: Any,
) -> None:
    """Train a model on an environment by name, and compare it before and after on validation scenarios.

    To resume after a stop or a kill, repeat the command. With a higher --steps, a finished run continues.

    `art train --environment tic-tac-toe --base-model art/nano-games` trains on a built-in task.
    `art train --environment reasoning-gym:letter_counting --environment-option max_words=4
    --base-model Qwen/...` trains on a dataset of reasoning-gym.
    """
    keywords = {**settings, "name": name, "project": project, "path": data_dir}
    raise typer.Exit(
        train_run(environment, base_model, keywords, environment_option or (), harness, engine, json_file)
    )


def train_run(
    environment: str,
    model: str,
    keywords: Mapping[str, Any],
    options: Sequence[str],
    harness: str | None,
    engine: str,
    json_file: Path | None,
) -> int:
    """Train and report. keywords: those of `art.train_environment`; options: KEY=VALUE words for the
    environment; harness: the program that asks the model. Returns the exit code.
    """
    console = plain_console()

    async def work() -> None:
        require_extra("local", "art train")
        from art.cli.quickstart import check_base_model
        from art.client.backends.local_backend import LocalBackend
        from art.engine.registry import engine_options
        from art.runs.environment_run import train_environment

        chosen = environment_options_from(environment, options, harness)
        engine_options(engine, {})
        check_base_model(model)
        server = {} if engine == "builtin" else {"engine": {"name": engine}}
        async with LocalBackend(path=keywords["path"], server_options=server) as backend:
            report = await train_environment(
                environment,
                model,
                environment_options=chosen,
                backend=backend,
                tell=lambda text: console.print(text, markup=False),
                **keywords,
            )
        show_report(console, report, json_file)
        console.print(f"To see it in a browser: art ui {keywords['path']}", markup=False)

    return run_resumable(work, console)
