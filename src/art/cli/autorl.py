"""`art autorl "..."`: the command, with its options; the work is done in `autorl_work.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
    Seed,
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
NumTrain = Annotated[int, typer.Option(min=1, help="Inputs to train on.")]
NumTest = Annotated[int, typer.Option(min=1, help="Inputs held out.")]
Similarity = Annotated[float, typer.Option(help="From which likeness, 0 to 1, two inputs count as one.")]
GroupSize = Annotated[int, typer.Option(min=2, help="Attempts at each input.")]
GroupsPerStep = Annotated[int, typer.Option(min=1, help="Inputs a step.")]
Epochs = Annotated[int, typer.Option(min=1, help="Passes over the inputs.")]
LearningRate = Annotated[float, typer.Option(help="Of the adapter.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Of one answer.")]
TestAttempts = Annotated[int, typer.Option(min=1, help="At each held-out input, before and after.")]
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
    num_train: NumTrain = 25,
    num_test: NumTest = 5,
    similarity: Similarity = 0.9,
    group_size: GroupSize = 4,
    groups_per_step: GroupsPerStep = 2,
    epochs: Epochs = 3,
    learning_rate: LearningRate = 1e-05,
    max_tokens: MaxTokens = 1024,
    test_attempts: TestAttempts = 4,
    budget_calls: BudgetCalls = None,
    budget_tokens: BudgetTokens = None,
    budget_usd: BudgetUsd = None,
    seed: Seed = 0,
    data_dir: DataDir = DATA_DIR,
    prepare_only: PrepareOnly = False,
    json: JsonFile = None,
) -> None:
    """Train a model from the description of a task, without data or labels, and compare it before and after.

    Stopped or killed, the same command goes on where it was, and pays for no answer twice.
    """
    options = dict(locals())
    from art.cli.autorl_work import autorl_run

    raise typer.Exit(autorl_run(options))
