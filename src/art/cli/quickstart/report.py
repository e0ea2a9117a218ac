"""What the user sees at the end: the table, the two games, where the files are, what to try next."""

from __future__ import annotations

import json
import platform
import shlex
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from art.cli.quickstart.evaluation import Evaluation
from art.cli.quickstart.folder import RunFolder, StepRow
from art.cli.quickstart.settings import Settings
from art.tasks import Task

COUNTS = {"turns"}
"""Metrics that are numbers of something; all others are shares of the attempts."""


def print_step(console: Console, row: StepRow, settings: Settings, task: Task) -> None:
    """One line a step."""
    console.print(
        f"step {row.step:>3}/{settings.steps}  reward {row.reward:+.3f}  "
        f"{task.SCORE_LABEL} {row.score:6.1%}  "
        f"{row.seconds_rollouts:4.1f} s + {row.seconds_training:4.1f} s",
        highlight=False,
        soft_wrap=True,
    )


def result_json(
    settings: Settings, folder: RunFolder, before: Evaluation, after: Evaluation, seconds: float
) -> dict[str, Any]:
    """What `--json` writes. `seconds` is this process' wall time, set-up of the server included."""
    return {
        "task": settings.task,
        "seed": settings.seed,
        "steps": settings.steps,
        "before": before.to_json(),
        "after": after.to_json(),
        "rewards": [row.reward for row in folder.steps()],
        "seconds": round(seconds, 1),
        "machine": {
            "processor": platform.machine(),
            "system": platform.system(),
            "python": platform.python_version(),
        },
        "files": {
            "run": str(folder.path),
            "chart": str(folder.chart),
            "checkpoints": str(checkpoints(folder, settings)),
        },
    }


def print_report(
    console: Console, settings: Settings, task: Task, folder: RunFolder, before: Evaluation, after: Evaluation
) -> None:
    console.print(comparison(task, before, after))
    games = pick_games(folder, settings.steps)
    if games is not None:
        console.print(side_by_side(*games))
    console.print(file_table(folder, settings))
    console.print(next_steps(settings, folder), soft_wrap=True)


def comparison(task: Task, before: Evaluation, after: Evaluation) -> Table:
    """The before/after table: means in per cent where they are shares, with one standard error."""
    table = Table(title=f"{task.NAME}: {after.attempts} fresh attempts each")
    for heading in ("", "before", "after", "change"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name in before.means:
        old, new = (row.means[name] for row in (before, after))
        write = signed if name == "reward" else count if name in COUNTS else share
        cells = [
            f"{write(row.means[name])} ± {write(row.errors[name]).lstrip('+')}" for row in (before, after)
        ]
        change = f"{100 * (new - old):+.1f} points" if write is share else f"{new - old:+.3f}"
        table.add_row(name.replace("_", " "), *cells, change, style="bold" if name == task.SCORE else "")
    return table


def share(value: float) -> str:
    return f"{value:.1%}"


def count(value: float) -> str:
    return f"{value:.2f}"


def signed(value: float) -> str:
    return f"{value:+.3f}"


def pick_games(folder: RunFolder, steps: int) -> tuple[str, str] | None:
    """Transcripts of the scenario, among those kept, whose reward rose most."""
    before, after = folder.evaluation(0), folder.evaluation(steps)
    if before is None or after is None:
        return None
    pairs = [
        (old, new)
        for old, new in zip(before[1], after[1], strict=False)
        if "transcript" in old and "transcript" in new
    ]
    if not pairs:
        return None
    old, new = max(pairs, key=lambda pair: pair[1]["reward"] - pair[0]["reward"])
    return old["transcript"], new["transcript"]


def side_by_side(before: str, after: str) -> Table:
    """Two transcripts, folded so that both fit beside each other; no markup is read in them."""
    table = Table(title="one scenario, before and after")
    table.add_column("before", overflow="fold")
    table.add_column("after", overflow="fold")
    table.add_row(Text(before), Text(after))
    return table


def checkpoints(folder: RunFolder, settings: Settings) -> Path:
    from art.cli.quickstart.run import PROJECT

    return folder.data_dir / PROJECT / "models" / settings.task / "checkpoints"


def file_table(folder: RunFolder, settings: Settings) -> Table:
    table = Table(title="files", show_header=False)
    rows = {
        "reward curve": folder.chart,
        "result": folder.result,
        "each step": folder.path / "steps.jsonl",
        "metrics": checkpoints(folder, settings).parent / "history.jsonl",
        "adapters (PEFT)": checkpoints(folder, settings),
        "every sampled token": folder.data_dir / "server" / "ledger.sqlite",
    }
    for name, path in rows.items():
        table.add_row(name, escape(str(path)))
    return table


def next_steps(settings: Settings, folder: RunFolder) -> str:
    other = "mail" if settings.task != "mail" else "tic-tac-toe"
    more = shlex.join(
        [
            "art",
            "quickstart",
            settings.task,
            "--resume",
            "--output",
            str(folder.path),
            "--steps",
            str(settings.steps * 2),
        ]
    )
    return (
        "[bold]What to try next[/bold]\n"
        f"  art quickstart {other:<12}   another task\n"
        f"  {escape(more)}   train this one further\n"
        f"  art serve --data-dir {escape(shlex.quote(str(folder.data_dir)))}   talk to what you trained\n"
        "  examples/tic_tac_toe.py   the program you would write yourself"
    )


def save_result(folder: RunFolder, json_file: Path | None, result: dict[str, Any]) -> None:
    text = json.dumps(result, indent=1) + "\n"
    folder.result.write_text(text)
    if json_file is not None:
        json_file.write_text(text)
