"""`art autorl "..."`: the command, with its options; the work is done in `autorl_work.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def autorl(
    task: Annotated[str, typer.Argument(help="The task, in a sentence or more; @FILE reads it from a file.")],
    base_model: Annotated[
        str, typer.Option(help="The model to train: a hub name, a folder, or a built-in one.")
    ],
    name: Annotated[
        str, typer.Option(help="The model's name; the same name goes on with its run.")
    ] = "autorl",
    project: Annotated[str, typer.Option(help="The project's name.")] = "autorl",
    judge: Annotated[
        str, typer.Option(help="Compares the answers (RULER): provider/model.")
    ] = "openai/o4-mini",
    judge_base_url: Annotated[
        str | None, typer.Option(help="Its address; key in ART_JUDGE_API_KEY. Default: the provider's own.")
    ] = None,
    referee: Annotated[
        str | None, typer.Option(help="Compares before and after instead of the judge: provider/model.")
    ] = None,
    generator: Annotated[
        str, typer.Option(help="Writes inputs, system prompt and rubric: provider/model.")
    ] = "openai/gpt-4.1-mini",
    generator_base_url: Annotated[
        str | None,
        typer.Option(help="Its address; key in ART_GENERATOR_API_KEY. Default: the provider's own."),
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option(help="A file with inputs of your own: a JSON list, or one on each line.")
    ] = None,
    system_prompt: Annotated[
        str | None, typer.Option(help="Your own instead of a generated one; '' for none.")
    ] = None,
    rubric: Annotated[str | None, typer.Option(help="Your own instead of a generated one.")] = None,
    num_train: Annotated[int, typer.Option(min=1, help="Inputs to train on.")] = 25,
    num_test: Annotated[int, typer.Option(min=1, help="Inputs held out.")] = 5,
    similarity: Annotated[
        float, typer.Option(help="From which likeness, 0 to 1, two inputs count as one.")
    ] = 0.9,
    group_size: Annotated[int, typer.Option(min=2, help="Attempts at each input.")] = 4,
    groups_per_step: Annotated[int, typer.Option(min=1, help="Inputs a step.")] = 2,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the inputs.")] = 3,
    learning_rate: Annotated[float, typer.Option(help="Of the adapter.")] = 1e-5,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of one answer.")] = 1024,
    test_attempts: Annotated[int, typer.Option(min=1, help="At each held-out input, before and after.")] = 4,
    budget_calls: Annotated[
        int | None, typer.Option(min=1, help="Calls of all that are asked, at most.")
    ] = None,
    budget_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of them, at most.")] = None,
    budget_usd: Annotated[float | None, typer.Option(help="US dollars for them, at most.")] = None,
    seed: Annotated[int, typer.Option(help="Of the split, the order and the test attempts.")] = 0,
    data_dir: Annotated[Path, typer.Option(help="Runs, models, and the answers that are kept.")] = Path(
        ".art"
    ),
    prepare_only: Annotated[
        bool,
        typer.Option(
            "--prepare-only", help="Write inputs, system prompt and rubric, and stop: edit them, go on."
        ),
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Also write the report, as JSON, to this file.")] = None,
) -> None:
    """Train a model from the description of a task, without data or labels, and compare it before and after.

    Stopped or killed, the same command goes on where it was, and pays for no answer twice.
    """
    options = dict(locals())
    from art.cli.autorl_work import autorl_run

    raise typer.Exit(autorl_run(options))
