"""`art autorl`: a model learns a task from its description."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from art.cli.config_file import ConfigFile
from art.cli.run_options import (
    DATA_DIR,
    BaseModel,
    DataDir,
    JsonFile,
    Project,
    plain_console,
    run_resumable,
    settings_verb,
    show_report,
)
from art.errors import ConfigurationError
from art.process.foreign_files import parse_json
from art_extensions.scenarios.judge_options import AskedOptions, Name, takes_asked

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
SETTINGS = "art_extensions.scenarios.autorl.autorl_run:AutoRLSettings"
Task = Annotated[str, typer.Argument(help="The task, in a sentence or more; @FILE reads it from a file.")]
Inputs = Annotated[
    Path | None, typer.Option(help="A file with inputs of your own: a JSON list, or one on each line.")
]
SystemPrompt = Annotated[
    str | None, typer.Option(help="Your own system prompt; '' for none. Default: a generated one.")
]
Rubric = Annotated[str | None, typer.Option(help="Your own rubric. Default: a generated one.")]
PrepareOnly = Annotated[
    bool,
    typer.Option(
        "--prepare-only", help="Write inputs, system prompt and rubric, and stop, so that you can edit them."
    ),
]


@settings_verb(app, SETTINGS, unset=("learning_rate",))
@takes_asked
def autorl(
    task: Task,
    base_model: BaseModel,
    *,
    config: ConfigFile = None,
    name: Name = "autorl",
    project: Project = "autorl",
    asked: AskedOptions,
    inputs: Inputs = None,
    system_prompt: SystemPrompt = None,
    rubric: Rubric = None,
    data_dir: DataDir = DATA_DIR,
    prepare_only: PrepareOnly = False,
    json_file: JsonFile = None,
    **settings: Any,
) -> None:
    """Train a model from the description of a task, without data or labels, and compare it before and after.

    To resume after a stop or a kill, repeat the command. It pays for no answer twice.
    """
    keywords = {
        **settings,
        **{"base_model": base_model, "name": name, "project": project, "path": data_dir},
        **{"system_prompt": system_prompt, "rubric": rubric},
    }
    raise typer.Exit(autorl_run(task, keywords, asked, inputs, json_file, prepare_only=prepare_only))


JUDGING = ("judge", "judge_params", "referee")
"""Who has nothing to do with preparing a run."""


def autorl_run(
    task: str,
    keywords: Mapping[str, Any],
    asked: AskedOptions,
    inputs: Path | None,
    json_file: Path | None,
    *,
    prepare_only: bool,
) -> int:
    """Train and report. keywords: those of `art.autorl.train` without the ones of `asked`. Returns the exit
    code.
    """
    console = plain_console()

    async def work() -> None:
        from art_extensions.scenarios.autorl import prepare, train

        chosen = {
            **keywords,
            **asked.keywords(),
            "inputs": None if inputs is None else read_inputs(inputs),
            "tell": lambda text: console.print(text, markup=False),
        }
        if not prepare_only:
            show_report(console, await train(_task(task), **chosen), json_file)
            return
        folder = await prepare(_task(task), **{name: chosen[name] for name in chosen if name not in JUDGING})
        console.print(f"Prepared in {folder}: edit the files, then run the command again.", markup=False)

    return run_resumable(work, console)


def _task(text: str) -> str:
    return Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text


def read_inputs(path: Path) -> list[str]:
    """A JSON list of texts, or a text on each line. Raises ConfigurationError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--inputs {str(path)!r} cannot be read: {error}") from error
    if path.suffix != ".json":
        return [line for line in text.split("\n") if line.strip()]
    try:
        listed = parse_json(text)
    except ValueError as error:
        raise ConfigurationError(f"--inputs {str(path)!r} is not JSON: {error}") from error
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise ConfigurationError(f"--inputs {str(path)!r}: a list of texts is needed")
    return listed
