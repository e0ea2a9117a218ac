"""`art eval`, with its options."""

from __future__ import annotations

from typing import Annotated

import typer

from art.cli.model_verbs import AsJson, Best, DataDir, EnvironmentOption, Harness, readable_errors
from art.cli.run_options import DATA_DIR

Task = Annotated[str | None, typer.Option(help="A built-in task: tic-tac-toe, yes-no-maybe or mail.")]
RolloutOption = Annotated[
    str | None,
    typer.Option(metavar="MODULE:FUNCTION", help="Your rollout function, called with (model, scenario)."),
]
Scenarios = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|MODULE:NAME", help="Your scenarios: JSON lines, a JSON list, or a list in a module."
    ),
]
Rollouts = Annotated[
    int | None,
    typer.Option(min=1, help="Rollouts in all. Default: 100 of a task, one of each of your scenarios."),
]


EnvironmentName = Annotated[
    str | None,
    typer.Option(help="An environment by name, such as reasoning-gym:letter_counting: its split val."),
]
Each = Annotated[int, typer.Option(min=1, help="Rollouts of each scenario.")]
Success = Annotated[
    float, typer.Option(help="The reward from which a rollout counts as a success, for pass@k.")
]
Against = Annotated[
    int | None,
    typer.Option(min=0, help="Another step to compare with, on the same scenarios with the same seeds."),
]


def evaluate(
    model: Annotated[str, typer.Argument(help="The model: PROJECT/NAME or PROJECT/NAME@STEP.")],
    task: Task = None,
    environment: EnvironmentName = None,
    environment_option: EnvironmentOption = None,
    harness: Harness = None,
    rollout: RolloutOption = None,
    scenarios: Scenarios = None,
    eval_rollouts: Rollouts = None,
    eval_group_size: Each = 1,
    success: Success = 1.0,
    against: Against = None,
    sampling: Annotated[str, typer.Option(help="sampled, greedy or both.")] = "sampled",
    temperature: Annotated[float, typer.Option(min=0, help="The temperature of sampled rollouts.")] = 1.0,
    seed: Annotated[int, typer.Option(help="The seed of the rollouts, for comparisons.")] = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="Concurrent rollouts.")] = 16,
    split: Annotated[str, typer.Option(help="The split to log to.")] = "val",
    best: Best = None,
    data_dir: DataDir = DATA_DIR,
    json: AsJson = False,
) -> None:
    """Evaluate a checkpoint: mean reward and metrics with their standard errors, and pass@k.

    The result is added to the model's history, as `model.log` does. Without @STEP and --best it takes the
    newest step.
    """
    from art_extensions.evaluation.evaluate import EvalChoices, evaluate_model

    choices = EvalChoices(
        task=task,
        environment=environment,
        environment_options=environment_option or (),
        harness=harness,
        rollout=rollout,
        scenarios=scenarios,
        rollouts=eval_rollouts,
        each=eval_group_size,
        success=success,
        against=against,
        sampling=sampling,
        temperature=temperature,
        seed=seed,
        concurrency=concurrency,
        split=split,
    )
    with readable_errors():
        evaluate_model(model, choices, best=best, data_dir=data_dir, as_json=json)
