"""`art autorl "..."`: the command, with its options; the work is done in `autorl_work.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from art.cli.run_options import (
    DATA_DIR,
    BaseModel,
    BudgetCalls,
    BudgetTokens,
    BudgetUsd,
    DataDir,
    GeneratorUrl,
    JsonFile,
    JudgeUrl,
    Name,
    Project,
    Referee,
)
from art.runs.generator import GENERATOR
from art.runs.judges import JUDGE

Task = Annotated[str, typer.Argument(help="The task, in a sentence or more; @FILE reads it from a file.")]
Judge = Annotated[str, typer.Option(help="Compares the answers (RULER): provider/model.")]
Generator = Annotated[str, typer.Option(help="Writes inputs, system prompt and rubric: provider/model.")]
Inputs = Annotated[
    Path | None, typer.Option(help="A file with inputs of your own: a JSON list, or one on each line.")
]
SystemPrompt = Annotated[str | None, typer.Option(help="Your own instead of a generated one; '' for none.")]
Rubric = Annotated[str | None, typer.Option(help="Your own instead of a generated one.")]
PrepareOnly = Annotated[
    bool,
    typer.Option(
        "--prepare-only", help="Write inputs, system prompt and rubric, and stop: edit them, go on."
    ),
]


def autorl(
    task: Task,
    base_model: BaseModel,
    name: Name = "autorl",
    project: Project = "autorl",
    judge: Judge = JUDGE,
    judge_base_url: JudgeUrl = None,
    referee: Referee = None,
    generator: Generator = GENERATOR,
    generator_base_url: GeneratorUrl = None,
    inputs: Inputs = None,
    system_prompt: SystemPrompt = None,
    rubric: Rubric = None,
    budget_calls: BudgetCalls = None,
    budget_tokens: BudgetTokens = None,
    budget_usd: BudgetUsd = None,
    data_dir: DataDir = DATA_DIR,
    prepare_only: PrepareOnly = False,
    json: JsonFile = None,
    **settings: Any,
) -> None:
    """Train a model from the description of a task, without data or labels, and compare it before and after.

    Stopped or killed, the same command goes on where it was, and pays for no answer twice.
    """
    from art import environment
    from art.cli.autorl_work import autorl_run
    from art.cli.long_run import params_of

    keywords = {
        **settings,
        **{"base_model": base_model, "name": name, "project": project, "path": data_dir},
        **{"judge": judge, "judge_params": params_of(judge_base_url, environment.JUDGE_API_KEY)},
        **{"generator": generator, "referee": referee},
        "generator_params": params_of(generator_base_url, environment.GENERATOR_API_KEY),
        **{"system_prompt": system_prompt, "rubric": rubric},
    }
    limits = {"calls": budget_calls, "tokens": budget_tokens, "usd": budget_usd}
    raise typer.Exit(autorl_run(task, keywords, limits, inputs, json, prepare_only=prepare_only))
