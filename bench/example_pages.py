"""The charts and tables of the examples, made of `examples/*/results.json`.

Each folder gets `chart.svg` and, between the marks of its README, a table. docs/get-started/examples.md gets
a line for each run, README.md a line for each folder, docs/assets/curves.svg a panel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure

from art.runs.comparison import Estimate
from bench.cell_tables import share, skill_table
from bench.examples import PLAIN, ROOT, Example, Measured, all_examples, read_results, read_skills
from bench.marked_pages import replace_between_marks, said
from bench.rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ALL_CURVES = ROOT / "docs" / "assets" / "curves.svg"
README = ROOT / "README.md"
TABLE = ROOT / "docs" / "get-started" / "examples.md"
BLUE, GREY, PALE = "#0969da", "#7d8590", "#9ec5f4"
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "art",  # the same figures give the same file
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
}
"""Readable on a light and on a dark page: the background is left out."""


def write_pages(examples: Sequence[Example]) -> list[Row]:
    """Writes the pages of the examples, the table of all, and returns a row for each that was measured."""
    rows: list[Row] = []
    with mpl.rc_context(STYLE):
        for folder, group in groupby(examples, key=lambda example: example.folder):
            results, asked = read_results(folder), {one.variant for one in group}
            # The page has all variants of its folder, also those that were measured before.
            shown = {one: results[one.variant] for one in Example.read(folder) if one.variant in results}
            parts = []
            if shown:
                draw_chart(shown, folder / "chart.svg")
                parts.append(f"![The chart](chart.svg)\n\n{readme_table(shown)}")
            if records := read_skills(folder.name):
                parts.append(skill_table(records))
            if parts:
                replace_between_marks(folder / "README.md", "\n".join(parts))
            rows += [row_of(example, one) for example, one in shown.items() if example.variant in asked]
        everything = {
            example: results[example.variant]
            for example in all_examples()
            if example.variant in (results := read_results(example.folder))
        }
        draw_all_curves(
            {example: one for example, one in everything.items() if example.variant == PLAIN}, ALL_CURVES
        )
    replace_between_marks(TABLE, docs_table(everything))
    replace_between_marks(README, front_table(all_examples(), everything))
    return rows


def row_of(example: Example, measured: Measured) -> Row:
    """The score after training against the goal; beside it, as the peer, the score before."""
    first, last = measured.first(), measured.last()
    assert first is not None and last is not None
    return Row(
        name=example.name,
        ours=last.mean,
        unit=f"{example.metric}, before {first.mean:g}",
        goal=example.goal,
        at_most=example.lower_is_better,
    )


def readme_table(shown: Mapping[Example, Measured]) -> str:
    """A table for each variant: the stages or the ends, the scripted players, the seeds."""
    parts = []
    for example, measured in shown.items():
        call = " ".join((example.program.name, *example.arguments) if example.file else example.arguments)
        heading = "" if example.variant == PLAIN else f"`{call}`:\n\n"
        stages = measured.stages() or {"before": measured.first(), "after": measured.last()}
        lines = [f"| | {example.metric}, mean of {len(measured.runs)} seeds (95 % interval) |", "|---|---|"]
        lines += [f"| {name} | {said(one)} |" for name, one in stages.items()]
        lines += [f"| {name} | {score:.2f} |" for name, score in measured.references.items()]
        rollouts = measured.runs[0].last.rollouts
        errors = min(run.gain_in_errors for run in measured.runs)
        note = (
            f"Each evaluation has {rollouts} rollouts of held-out scenarios. In each run the change is at "
            f"least {errors:.1f} standard errors of the difference. {measured.machine}."
        )
        parts.append(f"{heading}{chr(10).join(lines)}\n\n{note}\n")
    return "\n".join(parts)


def ends(measured: Measured | None) -> list[Estimate | None]:
    """Returns the scores of the base, after fine-tuning where the program begins with it, and at the end."""
    if measured is None:
        return [None, None, None]
    between = list(measured.stages().values())[1:-1]
    return [measured.first(), between[-1] if between else None, measured.last()]


def simple_player(measured: Measured | None) -> str:
    """Returns the best of the scripted players that do not know the solution, with its score."""
    players = {} if measured is None else measured.references
    known = {name: score for name, score in players.items() if not name.startswith("perfect")}
    best = max(known, key=lambda name: known[name], default="")
    return f"{best} {known[best]:.2f}" if best else ""


def docs_table(everything: Mapping[Example, Measured]) -> str:
    """A line for each variant."""
    lines = [
        "| example | metric | seeds | base | base, greedy | base, pass@8 | after fine-tuning | after RL "
        "| best simple player | goal | seconds |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for example, one in everything.items():
        seconds = sorted(run.seconds for run in one.runs)
        goal = f"{'at most' if example.lower_is_better else 'at least'} {example.goal:g}"
        program = f"../../examples/{example.folder.name}/{example.program.name}"
        base = [cell.measured for cell in read_skills(example.folder.name) if cell.cell.method == "base"]
        greedy, pass_at_8 = (base[-1].greedy, base[-1].pass_at_8) if base else (None, None)
        first, tuned, last = ("" if score is None else said(score) for score in ends(one))
        lines.append(
            f"| [{example.name}]({program}) | {example.metric} | {len(one.runs)} | {first} | {share(greedy)} "
            f"| {share(pass_at_8)} | {tuned} | {last} | {simple_player(one)} | {goal} "
            f"| {seconds[len(seconds) // 2]:.0f} |"
        )
    return "\n".join(lines) + "\n"


def front_table(examples: Sequence[Example], everything: Mapping[Example, Measured]) -> str:
    """A line for each folder, measured or not."""
    lines = [
        "| program | what the model learns | base | after fine-tuning | after RL | best simple player |",
        "|---|---|---|---|---|---|",
    ]
    for example in examples:
        if example.variant == PLAIN:
            name, measured = example.folder.name, everything.get(example)
            scores = " | ".join("" if one is None else f"{one.mean:.2f}" for one in ends(measured))
            lines.append(
                f"| [`examples/{name}`](examples/{name}/README.md) | {example.learns} | {scores} "
                f"| {simple_player(measured)} |"
            )
    return "\n".join(lines) + "\n"


def draw_chart(shown: Mapping[Example, Measured], path: Path) -> None:
    """Draws, for each variant, the curve of each seed beside bars: before, after and the scripted players."""
    figure = Figure(figsize=(8, 2.6 * len(shown)))
    rows = figure.subplots(len(shown), 2, squeeze=False, width_ratios=[3, 2])
    for (left, right), (example, measured) in zip(rows, shown.items(), strict=True):
        draw_curves(left, example, measured)
        draw_bars(right, measured)
    figure.tight_layout()
    save(figure, path)


def draw_curves(axes: Axes, example: Example, measured: Measured) -> None:
    """One pale line a seed, and their mean."""
    for run in measured.runs:
        axes.plot([one.step for one in run.evaluated], [one.mean for one in run.evaluated], color=PALE)
    by_step: dict[int, list[float]] = {}
    for run in measured.runs:
        for one in run.evaluated:
            by_step.setdefault(one.step, []).append(one.mean)
    whole = {step: values for step, values in sorted(by_step.items()) if len(values) == len(measured.runs)}
    axes.plot(list(whole), [sum(values) / len(values) for values in whole.values()], color=BLUE, marker="o")
    for name, score in measured.references.items():
        axes.axhline(score, color=GREY, linestyle="--", linewidth=0.8)
        axes.annotate(name, (0, score), xytext=(2, 2), textcoords="offset points", fontsize=7)
    axes.set_title(f"{example.title}: {example.metric}", loc="left", color=GREY)
    axes.set_xlabel("training step")
    axes.locator_params(axis="x", integer=True)


def draw_bars(axes: Axes, measured: Measured) -> None:
    """The scripted players and the stages, with the intervals over the seeds."""
    stages = measured.stages() or {"before": measured.first(), "after": measured.last()}
    names = [*measured.references, *stages]
    for place, score in enumerate(measured.references.values()):
        axes.barh(place, score, color=GREY)
        axes.annotate(f"{score:.2f}", (score, place), xytext=(3, -3), textcoords="offset points")
    for place, (name, one) in enumerate(stages.items(), start=len(measured.references)):
        if one is None:
            continue
        spread = (
            None if one.low is None or one.high is None else [[one.mean - one.low], [one.high - one.mean]]
        )
        axes.barh(place, one.mean, xerr=spread, color=BLUE if name == names[-1] else PALE, ecolor=GREY)
        end = one.mean if one.high is None else max(one.mean, one.high)
        axes.annotate(f"{one.mean:.2f}", (end, place), xytext=(3, -3), textcoords="offset points")
    axes.set_yticks(range(len(names)), names)
    axes.margins(x=0.15)


def save(figure: Figure, path: Path) -> None:
    figure.savefig(path, transparent=True, metadata={"Date": None})
    text = path.read_text(encoding="utf-8")
    path.write_text("".join(f"{line.rstrip()}\n" for line in text.splitlines()), encoding="utf-8")


def draw_all_curves(everything: Mapping[Example, Measured], path: Path) -> None:
    """Draws a small panel for each example."""
    if not everything:
        return
    columns = 3
    lines = -(-len(everything) // columns)
    figure = Figure(figsize=(3 * columns, 2.2 * lines))
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, (example, measured) in zip(panels, everything.items(), strict=False):
        draw_curves(axes, example, measured)
        axes.set_title(f"{example.title}: {example.metric}", loc="left", fontsize=8)
    for axes in panels[len(everything) :]:
        axes.set_axis_off()
    figure.tight_layout()
    save(figure, path)
