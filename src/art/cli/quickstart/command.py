"""From the command line's choices to an exit code."""

from __future__ import annotations

import asyncio
import shlex
import time
from pathlib import Path

from rich.console import Console

from art import tasks
from art.cli.quickstart.chart import draw_reward_curve
from art.cli.quickstart.folder import RunFolder, existing_folder, new_folder
from art.cli.quickstart.report import print_report, print_step, result_json, save_result
from art.cli.quickstart.run import run
from art.cli.quickstart.settings import Choices, Settings, resolve, resumed
from art.errors import ARTError

INTERRUPTED = 130


def run_command(choices: Choices, *, output: Path | None, json_file: Path | None, resume: bool) -> int:
    """Run, report, and turn every expected failure into one readable line. Returns the exit code."""
    console = Console()
    folder: RunFolder | None = None
    try:
        tasks.find(choices.task)
        if resume:
            folder = existing_folder(output, task=choices.task)
            settings = resumed(Settings.load(folder.path), choices, done=folder.done)
        else:
            settings = resolve(choices)
            folder = new_folder(output, task=settings.task)
        settings.save(folder.path)
        learn(console, settings, folder, json_file)
    except ARTError as error:
        console.print(
            f"[red]{type(error).__name__}[/red]: {error}", markup=True, highlight=False, soft_wrap=True
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


def learn(console: Console, settings: Settings, folder: RunFolder, json_file: Path | None) -> None:
    task = tasks.find(settings.task)
    begin = time.perf_counter()
    console.print(
        f"[bold]{task.TITLE}[/bold]\n{settings.base_model} learns from {settings.steps} steps of "
        f"{settings.groups} x {settings.group_size} attempts, seed {settings.seed}. "
        f"Files go to {folder.path}.",
        highlight=False,
    )
    for row in folder.steps():
        print_step(console, row, settings, task)
    before, after = asyncio.run(
        run(settings, folder, on_step=lambda row: print_step(console, row, settings, task))
    )
    draw_reward_curve(
        [row.reward for row in folder.steps()], folder.chart, title=f"{task.NAME}, seed {settings.seed}"
    )
    save_result(folder, json_file, result_json(settings, folder, before, after, time.perf_counter() - begin))
    print_report(console, settings, task, folder, before, after)
