"""`art quickstart`: a language model learns a small task while you watch."""

from __future__ import annotations

import asyncio
import shlex
import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from art.environments import tasks
from art.errors import ARTError
from art.process.interrupt import INTERRUPTED
from art.runs.quickstart import (
    QuickstartChoices,
    QuickstartFolder,
    QuickstartSettings,
    existing_folder,
    new_folder,
    resolve_settings,
    resumed_settings,
    run_quickstart,
)
from art.runs.quickstart_report import draw_reward_curve, print_report, print_step, result_json, save_result


def quickstart_command(
    choices: QuickstartChoices, *, output: Path | None, json_file: Path | None, resume: bool
) -> int:
    """Run, report, and turn every expected failure into one readable line. Returns the exit code."""
    console = Console()
    folder: QuickstartFolder | None = None
    try:
        tasks.find(choices.task)
        if resume:
            folder = existing_folder(output, task=choices.task)
            settings = resumed_settings(QuickstartSettings.load(folder.path), choices, done=folder.done)
        else:
            settings = resolve_settings(choices)
            check_base_model(settings.base_model)
            folder = new_folder(output, task=settings.task)
        settings.save(folder.path)
        train_and_report(console, settings, folder, json_file)
    except ARTError as error:
        console.print(
            f"[red]{type(error).__name__}[/red]: {escape(str(error))}", highlight=False, soft_wrap=True
        )
        return 1
    except KeyboardInterrupt:
        again = shlex.join(
            [
                "art",
                "quickstart",
                choices.task,
                "--resume",
                "--output",
                str(folder.path if folder else output),
            ]
        )
        console.print(
            f"\nStopped. Nothing committed is lost; go on with:\n  {again}", highlight=False, soft_wrap=True
        )
        return INTERRUPTED
    return 0


def check_base_model(name: str) -> None:
    """Raises ConfigurationError for a base model that is neither shipped, nor a folder or a GGUF file, nor on
    the hub. A run that could not begin leaves no folder.
    """
    from art.engine.base_models import is_folder, resolve_base

    base = resolve_base(name)
    if base.made_by is None and not is_folder(base.source):
        from art.rendering.registry import is_on_hub

        is_on_hub(base.source)


def train_and_report(
    console: Console, settings: QuickstartSettings, folder: QuickstartFolder, json_file: Path | None
) -> None:
    task = tasks.find(settings.task)
    begin = time.perf_counter()
    console.print(
        f"[bold]{task.TITLE}[/bold]\n{settings.base_model} learns from {settings.steps} steps of "
        f"{settings.groups} x {settings.group_size} rollouts, seed {settings.seed}. "
        f"Files go to {folder.path}.",
        highlight=False,
    )
    for row in folder.steps():
        print_step(console, row, settings, task)
    before, after = asyncio.run(
        run_quickstart(
            settings,
            folder,
            on_step=lambda row: print_step(console, row, settings, task),
            on_link=lambda link: console.print(
                f"See it in a browser: {link}", style="dim", highlight=False, soft_wrap=True
            ),
        )
    )
    draw_reward_curve(
        [row.reward for row in folder.steps()], folder.chart, title=f"{task.NAME}, seed {settings.seed}"
    )
    save_result(folder, json_file, result_json(settings, folder, before, after, time.perf_counter() - begin))
    print_report(console, settings, task, folder, before, after)
