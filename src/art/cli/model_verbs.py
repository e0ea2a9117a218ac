"""The verbs for what was trained and for logs, with their options; the work is done elsewhere.

A model is `project/name` or `project/name@step` (`art.tracking.folders.find_model`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from art.cli.run_options import DATA_DIR
from art.errors import ARTError, ConfigurationError

DataDir = Annotated[
    Path, typer.Option(help="The data folder: what `art serve --data-dir` or LocalBackend(path=...) used.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@contextmanager
def readable_errors() -> Iterator[None]:
    """Ends a verb with one line instead of a traceback: exit code 2 for a wrong option, 1 for what failed."""
    try:
        yield
    except ARTError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2 if isinstance(error, ConfigurationError) else 1) from error


Best = Annotated[
    str | None,
    typer.Option(metavar="METRIC", help="Take the step with the highest mean of a metric: val/reward."),
]
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
EnvironmentOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="An option of the environment, with VALUE as JSON or text. May be repeated.",
    ),
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
    from art.cli.evaluate import EvalChoices, evaluate_model

    choices = EvalChoices(
        task=task,
        environment=environment,
        environment_options=environment_option or (),
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


def show(
    target: Annotated[
        str, typer.Argument(help="The model, PROJECT/NAME or PROJECT/NAME@STEP, or a file of trajectories.")
    ],
    group: Annotated[int | None, typer.Argument(min=0, help="The group, counted from 0.")] = None,
    rollout: Annotated[
        int | None, typer.Argument(min=0, help="The rollout in the group, counted from 0.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="The split. Default: train if it has the step, else val, else another.")
    ] = None,
    data_dir: DataDir = DATA_DIR,
    json: AsJson = False,
) -> None:
    """Show logged trajectories: turns, tool calls, rewards, metrics and logs.

    `art show PROJECT/NAME` lists the groups of the newest logged step. `art show PROJECT/NAME@3 0` lists the
    rollouts of the first group of step 3, and `art show PROJECT/NAME@3 0 2` prints the third of them.
    """
    from art.cli.show import show_log

    with readable_errors():
        show_log(target, group=group, rollout=rollout, split=split, data_dir=data_dir, as_json=json)
