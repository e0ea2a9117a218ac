"""The verbs for what was trained, with their options; the work is done in the modules beside this one.

Each takes a model as `project/name` or `project/name@step` (`art.tracking.folders.find_model`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

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
    data_dir: DataDir = Path(".art"),
    json: AsJson = False,
) -> None:
    """Show logged trajectories: turns, tool calls, rewards, metrics and logs.

    `art show PROJECT/NAME` lists the groups of the newest logged step. `art show PROJECT/NAME@3 0` lists the
    rollouts of the first group of step 3, and `art show PROJECT/NAME@3 0 2` prints the third of them.
    """
    from art.cli.show import show_log

    with readable_errors():
        show_log(target, group=group, rollout=rollout, split=split, data_dir=data_dir, as_json=json)
