"""What the user sees at the end of a quick start: a table, two games, the reward curve, next steps."""

from __future__ import annotations

import json
import platform
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from art.environments.tasks import Task
from art.process.files import write_whole
from art.runs.folder import STEPS
from art.runs.quickstart import Evaluation, QuickstartFolder, QuickstartSettings, QuickstartStep


def draw_reward_curve(rewards: Sequence[float], path: Path, *, title: str) -> None:
    """Write a PNG of the mean reward of each step's rollouts, with a running mean of five."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    steps = range(1, len(rewards) + 1)
    axes.plot(
        steps,
        rewards,
        color="#9bb8d3",
        marker="o",
        markersize=3,
        linewidth=1,
        label="mean reward of the step",
    )
    axes.plot(
        steps, running_mean(rewards, window=5), color="#1f5a92", linewidth=2, label="running mean of five"
    )
    axes.set_xlabel("training step")
    axes.set_ylabel("reward")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    canvas.print_png(str(path))


def running_mean(values: Sequence[float], *, window: int) -> list[float]:
    """Mean of each value and up to `window - 1` before it.

    >>> running_mean([1.0, 3.0, 5.0], window=2)
    [1.0, 2.0, 4.0]
    """
    means = []
    for end in range(1, len(values) + 1):
        recent = values[max(0, end - window) : end]
        means.append(sum(recent) / len(recent))
    return means


COUNT_METRICS = {"turns"}
"""Metrics that are numbers of something; all others are shares of the rollouts."""


def print_step(console: Console, row: QuickstartStep, settings: QuickstartSettings, task: Task) -> None:
    """One line a step."""
    console.print(
        f"step {row.step:>3}/{settings.steps}  reward {row.reward:+.3f}  "
        f"{task.SCORE_LABEL} {row.score:6.1%}  "
        f"{row.seconds_rollouts:4.1f} s + "
        + ("not known" if row.seconds_training is None else f"{row.seconds_training:4.1f} s"),
        highlight=False,
        soft_wrap=True,
    )


def result_json(
    settings: QuickstartSettings,
    folder: QuickstartFolder,
    before: Evaluation,
    after: Evaluation,
    seconds: float,
) -> dict[str, Any]:
    """Returns the output of `--json`. `seconds` is this process' wall time, set-up of the server included."""
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
            "checkpoints": str(folder.model_folder(settings.task).checkpoints),
        },
    }


def print_report(
    console: Console,
    settings: QuickstartSettings,
    task: Task,
    folder: QuickstartFolder,
    before: Evaluation,
    after: Evaluation,
) -> None:
    console.print(comparison(task, before, after))
    games = pick_games(folder, settings.steps)
    if games is not None:
        console.print(side_by_side(*games))
    console.print(file_table(folder, settings))
    console.print(next_steps(settings, folder), soft_wrap=True)


def comparison(task: Task, before: Evaluation, after: Evaluation) -> Table:
    """The before/after table: means in per cent where they are shares, with one standard error."""
    table = Table(title=f"{task.NAME}: {after.rollouts} fresh rollouts each")
    for heading in ("", "before", "after", "change"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name in before.means:
        old, new = (row.means[name] for row in (before, after))
        write = signed if name == "reward" else count if name in COUNT_METRICS else share
        cells = [
            write(row.means[name])
            + (f" ± {write(row.errors[name]).lstrip('+')}" if name in row.errors else " (one rollout)")
            for row in (before, after)
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


def pick_games(folder: QuickstartFolder, steps: int) -> tuple[str, str] | None:
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
    """Shows two transcripts side by side, folded to fit; markup in them is not interpreted."""
    table = Table(title="one scenario, before and after")
    table.add_column("before", overflow="fold")
    table.add_column("after", overflow="fold")
    table.add_row(Text(before), Text(after))
    return table


def file_table(folder: QuickstartFolder, settings: QuickstartSettings) -> Table:
    table, model = Table(title="files", show_header=False), folder.model_folder(settings.task)
    rows = {
        "reward curve": folder.chart,
        "result": folder.result,
        "each step": folder.path / STEPS,
        "metrics": model.history,
        "adapters (PEFT)": model.checkpoints,
        "every sampled token": folder.data_dir / "server" / "ledger.sqlite",
    }
    for name, path in rows.items():
        table.add_row(name, escape(str(path)))
    return table


def next_steps(settings: QuickstartSettings, folder: QuickstartFolder) -> str:
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
        f"  art ui {escape(shlex.quote(str(folder.path)))}   see its rollouts and tokens in a browser\n"
        f"  art serve --data-dir {escape(shlex.quote(str(folder.data_dir)))}   talk to what you trained\n"
        "  examples/tic_tac_toe   the program you would write yourself"
    )


def save_result(folder: QuickstartFolder, json_file: Path | None, result: dict[str, Any]) -> None:
    text = json.dumps(result, indent=1) + "\n"
    write_whole(folder.result, text, durable=False)
    if json_file is not None:
        json_file.write_text(text)
