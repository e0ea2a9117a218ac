"""`art show`, with its options."""

from __future__ import annotations

from typing import Annotated

import typer

from art.cli.model_verbs import AsJson, DataDir, readable_errors
from art.cli.run_options import DATA_DIR


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
    from art_extensions.show.shown_log import show_log

    with readable_errors():
        show_log(target, group=group, rollout=rollout, split=split, data_dir=data_dir, as_json=json)
