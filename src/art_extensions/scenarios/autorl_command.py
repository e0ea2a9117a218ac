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
from art_extensions.scenarios.generator import DEFAULT_GENERATOR
from art_extensions.scenarios.judge_options import (
    BudgetCalls,
    BudgetTokens,
    BudgetUsd,
    GeneratorUrl,
    JudgeUrl,
    Name,
    Referee,
    budget_from,
    generator_params,
    judge_params,
)
from art_extensions.scenarios.judges import JUDGE

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
SETTINGS = "art_extensions.scenarios.autorl.autorl_run:AutoRLSettings"
Task = Annotated[str, typer.Argument(help="The task, in a sentence or more; @FILE reads it from a file.")]
Judge = Annotated[str, typer.Option(help="The judge (RULER) of the answers: provider/model.")]
Generator = Annotated[
    str, typer.Option(help="The model that writes inputs, system prompt and rubric: provider/model.")
]
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
def autorl(
    task: Task,
    base_model: BaseModel,
    config: ConfigFile = None,
    name: Name = "autorl",
    project: Project = "autorl",
    judge: Judge = JUDGE,
    judge_base_url: JudgeUrl = None,
    referee: Referee = None,
    generator: Generator = DEFAULT_GENERATOR,
    generator_base_url: GeneratorUrl = None,
    inputs: Inputs = None,
    system_prompt: SystemPrompt = None,
    rubric: Rubric = None,
    budget_calls: BudgetCalls = None,
    budget_tokens: BudgetTokens = None,
    budget_usd: BudgetUsd = None,
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
        **{"judge": judge, "judge_params": judge_params(judge_base_url), "referee": referee},
        **{"generator": generator, "generator_params": generator_params(generator_base_url)},
        **{"system_prompt": system_prompt, "rubric": rubric},
    }
    limits = {"calls": budget_calls, "tokens": budget_tokens, "usd": budget_usd}
    raise typer.Exit(autorl_run(task, keywords, limits, inputs, json_file, prepare_only=prepare_only))


JUDGING = ("judge", "judge_params", "referee")
"""Who has nothing to do with preparing a run."""


def autorl_run(
    task: str,
    keywords: Mapping[str, Any],
    limits: Mapping[str, Any],
    inputs: Path | None,
    json_file: Path | None,
    *,
    prepare_only: bool,
) -> int:
    """Train and report. keywords: those of `art.autorl.train`; limits: of what generator and judge may cost.
    Returns the exit code.
    """
    console = plain_console()

    async def work() -> None:
        from art_extensions.scenarios.autorl import prepare, train

        chosen = {
            **keywords,
            "budget": budget_from(**limits),
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
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".json":
        return [line for line in text.split("\n") if line.strip()]
    try:
        listed = parse_json(text)
    except ValueError as error:
        raise ConfigurationError(f"--inputs {str(path)!r} is not JSON: {error}") from error
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise ConfigurationError(f"--inputs {str(path)!r}: a list of texts is needed")
    return listed
