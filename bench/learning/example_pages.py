"""The charts and tables of the examples, made of the records of their cells.

Each folder gets `chart.svg` and, between the marks of its README, a table. docs/get-started/examples.md gets
a line for each run, README.md a line for each folder, docs/assets/curves.svg a panel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

import matplotlib as mpl
from matplotlib.figure import Figure

from art.runs.comparison import Estimate
from bench.learning.cell_tables import measured_where, share
from bench.learning.cells import Point, Record, estimate_of
from bench.learning.example_programs import PLAIN, ROOT, Example, all_examples, read_example_records, ways_of
from bench.marked_pages import replace_between_marks, said
from bench.rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ALL_CURVES = ROOT / "docs" / "assets" / "curves.svg"
README = ROOT / "README.md"
TABLE = ROOT / "docs" / "get-started" / "examples.md"
BEST = "best of 8"
"""With scores of 0 and 1 it is pass@8."""
LABELS = MappingProxyType(
    {
        "base": "base",
        "prompt": "base, best of three prompts",
        "sft": "SFT alone",
        "replies": "SFT, then a teacher's replies",
        "rejection": "rejection sampling",
    }
)
RL = "RL"
PLAIN_METHODS = frozenset({"base", "sft", "rejection"})
"""What the heading of their column says of every example; any other method is named in its cell."""
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


@dataclass(frozen=True, kw_only=True)
class Shown:
    """An example and what was measured of it."""

    example: Example
    ways: Mapping[str, Sequence[Record]]
    """By method."""
    players: Mapping[str, float]
    """The scripted players, and their scores."""

    @classmethod
    def read(cls, example: Example) -> Self | None:
        """Returns None where the program was never run to its end."""
        ways = ways_of(example, read_example_records(example.folder.name))
        if "grpo" not in ways:
            return None
        return cls(example=example, ways=ways, players=example.reference_scores())

    def label(self, method: str) -> str:
        return LABELS.get(method, self.example.last)

    def named(self, method: str, score: str) -> str:
        """Returns a score, with its method where the heading of its column does not say it."""
        label = self.label(method)
        return score if not score or method in PLAIN_METHODS or label == RL else f"{label}: {score}"

    def estimate(self, method: str) -> Estimate | None:
        """Returns the mean over the seeds, with an interval over them; of one seed over its scenarios."""
        last = [one.measured.last for one in self.ways.get(method, ())]
        if len(last) == 1:
            return Estimate(mean=last[0].mean, low=last[0].low, high=last[0].high, count=1)
        return estimate_of([one.mean for one in last]) if last else None

    def mean(self, method: str, name: str) -> float | None:
        """Returns `greedy` or `pass_at_8`, the mean over the seeds; None where it was not measured."""
        found = [getattr(one.measured, name) for one in self.ways.get(method, ())]
        known = [one for one in found if one is not None]
        return fmean(known) if known else None

    def tokens(self, method: str) -> str:
        """Returns how many tokens training sampled, where that was counted."""
        count = fmean(one.measured.last.tokens for one in self.ways[method])
        return f"{count:,.0f}" if count else ""

    @property
    def simple_player(self) -> str:
        """The best of the scripted players that do not know the solution, with its score."""
        known = {name: score for name, score in self.players.items() if not name.startswith("perfect")}
        best = max(known, key=lambda name: known[name], default="")
        return f"{best} {known[best]:.2f}" if best else ""

    @property
    def curves(self) -> list[list[Point]]:
        """The points of each seed's run, from the model as it is."""
        begin = [one.measured.last for one in self.ways.get("base", ())][:1]
        runs = [one.measured.points for one in self.ways["grpo"]]
        return [[*([] if run[0].step == 0 else begin), *run] for run in runs]


def write_pages(examples: Sequence[Example]) -> list[Row]:
    """Writes the pages of the examples, the table of all, and returns a row for each that was measured."""
    everything, chosen = all_examples(), {one.name for one in examples}
    found = [one for example in everything if (one := Shown.read(example))]
    with mpl.rc_context(STYLE):
        for folder, group in groupby(found, key=lambda one: one.example.folder):
            shown = list(group)
            if chosen & {one.example.name for one in shown}:
                draw_chart(shown, folder / "chart.svg")
                tables = "\n".join(map(readme_table, shown))
                replace_between_marks(folder / "README.md", f"![The chart](chart.svg)\n\n{tables}")
        draw_all_curves([one for one in found if one.example.variant == PLAIN], ALL_CURVES)
    replace_between_marks(TABLE, docs_table(found))
    replace_between_marks(README, front_table(everything, found))
    return [row_of(one) for one in found if one.example.name in chosen]


def row_of(one: Shown) -> Row:
    """The score after training against the goal; beside it, as the peer, the score before."""
    last, base = one.estimate("grpo"), one.estimate("base")
    assert last is not None
    before = "" if base is None else f", before {base.mean:g}"
    return Row(
        name=one.example.name, ours=last.mean, unit=f"{one.example.metric}{before}", goal=one.example.goal
    )


def readme_table(one: Shown) -> str:
    """The ways and the scripted players, what is not there and why, and where it was measured."""
    example = one.example
    call = " ".join((example.program.name, *example.arguments) if example.file else example.arguments)
    lines = [] if example.variant == PLAIN else [f"`{call}`:", ""]
    lines += [
        f"| | {example.metric}, sampled (95 % interval) | greedy | {BEST} | seeds | tokens to learn |",
        "|---|---|---|---|---|---|",
    ]
    for method, records in one.ways.items():
        told = [
            one.label(method),
            said(one.estimate(method)),
            share(one.mean(method, "greedy")),
            share(one.mean(method, "pass_at_8")),
            str(len(records)),
            one.tokens(method),
        ]
        lines.append(f"| {' | '.join(told)} |")
    lines += [f"| {name} | {score:.2f} | | | | |" for name, score in one.players.items()]
    lines += ["", *explained(one), measured_where([one for some in one.ways.values() for one in some]), ""]
    return "\n".join(lines)


def explained(one: Shown) -> list[str]:
    """Says what the table lacks: by its nature, or because it was not measured yet."""
    example = one.example
    lines = [f"Not there: `{name}`. {reason}" for name, reason in example.without.items()]
    if not example.stages:
        lines.append("The program has no supervised step.")
    missing = [
        one.label(way) for way in example.methods if way not in one.ways and way not in example.without
    ]
    if one.mean("grpo", "greedy") is None and "greedy" not in example.without:
        missing.append("greedy decoding")
    if missing:
        lines.append(f"Not measured yet: {', '.join(missing)}.")
    return [part for line in lines for part in (line, "")]


def docs_table(found: Sequence[Shown]) -> str:
    """A line for each variant."""
    lines = [
        f"| example | metric | seeds | base | base, greedy | base, {BEST} | after fine-tuning "
        "| rejection sampling | after RL, or the stage that is named | the same, greedy | best simple player "
        "| goal | seconds |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        example, seconds = one.example, sorted(run.measured.last.seconds for run in one.ways["grpo"])
        program = f"../../examples/{example.folder.name}/{example.program.name}"
        told = [
            f"[{example.name}]({program})",
            example.metric,
            str(len(seconds)),
            said(one.estimate("base")),
            share(one.mean("base", "greedy")),
            share(one.mean("base", "pass_at_8")),
            one.named(last_stage(one), said(one.estimate(last_stage(one)))),
            said(one.estimate("rejection")),
            one.named("grpo", said(one.estimate("grpo"))),
            share(one.mean("grpo", "greedy")),
            one.simple_player,
            f"at least {example.goal:g}",
            f"{seconds[len(seconds) // 2]:.0f}",
        ]
        lines.append(f"| {' | '.join(told)} |")
    return "\n".join(lines) + "\n"


def last_stage(one: Shown) -> str:
    """Returns the method that is the last supervised stage before rewards; empty where there is none."""
    return list(one.example.stages)[-1] if one.example.stages else ""


def front_table(examples: Sequence[Example], found: Sequence[Shown]) -> str:
    """A line for each folder, measured or not."""
    measured = {one.example: one for one in found}
    lines = [
        f"| program | what the model learns | base | base, greedy | base, {BEST} | after fine-tuning "
        "| rejection sampling | after RL, or the stage that is named | best simple player |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for example in examples:
        if example.variant == PLAIN:
            one, name = measured.get(example), example.folder.name
            told = [f"[`examples/{name}`](examples/{name}/README.md)", example.learns, *front_scores(one)]
            lines.append(f"| {' | '.join(told)} |")
    return "\n".join(lines) + "\n"


def front_scores(one: Shown | None) -> list[str]:
    if one is None:
        return [""] * 7
    methods = ("base", last_stage(one), "rejection", "grpo")
    means = [(method, one.estimate(method)) for method in methods]
    base, tuned, rejection, last = (
        "" if mean is None else one.named(method, f"{mean.mean:.2f}") for method, mean in means
    )
    greedy, tries = share(one.mean("base", "greedy")), share(one.mean("base", "pass_at_8"))
    return [base, greedy, tries, tuned, rejection, last, one.simple_player]


def draw_chart(shown: Sequence[Shown], path: Path) -> None:
    """Draws, for each variant, the curve of each seed beside bars: the ways and the scripted players."""
    figure = Figure(figsize=(8, 2.6 * len(shown)))
    rows = figure.subplots(len(shown), 2, squeeze=False, width_ratios=[3, 2])
    for (left, right), one in zip(rows, shown, strict=True):
        draw_curves(left, one)
        draw_bars(right, one)
    figure.tight_layout()
    save(figure, path)


def draw_curves(axes: Axes, one: Shown) -> None:
    """One pale line a seed, and their mean."""
    curves, by_step = one.curves, dict[int, list[float]]()
    for run in curves:
        axes.plot([point.step for point in run], [point.mean for point in run], color=PALE)
        for point in run:
            by_step.setdefault(point.step, []).append(point.mean)
    whole = {step: values for step, values in sorted(by_step.items()) if len(values) == len(curves)}
    axes.plot(list(whole), [fmean(values) for values in whole.values()], color=BLUE, marker="o")
    for name, score in one.players.items():
        axes.axhline(score, color=GREY, linestyle="--", linewidth=0.8)
        axes.annotate(name, (0, score), xytext=(2, 2), textcoords="offset points", fontsize=7)
    axes.set_title(f"{one.example.title}: {one.example.metric}", loc="left", color=GREY)
    axes.set_xlabel("training step")
    axes.locator_params(axis="x", integer=True)


def draw_bars(axes: Axes, one: Shown) -> None:
    """The scripted players and the ways, with their intervals."""
    names = [*one.players, *map(one.label, one.ways)]
    for place, score in enumerate(one.players.values()):
        axes.barh(place, score, color=GREY)
        axes.annotate(f"{score:.2f}", (score, place), xytext=(3, -3), textcoords="offset points")
    for place, method in enumerate(one.ways, start=len(one.players)):
        estimate = one.estimate(method)
        assert estimate is not None
        low, high = estimate.low, estimate.high
        # Rounding can put a bound past the mean of runs that agree.
        spread = (
            None
            if low is None or high is None
            else [[max(0.0, estimate.mean - low)], [max(0.0, high - estimate.mean)]]
        )
        axes.barh(place, estimate.mean, xerr=spread, color=BLUE if method == "grpo" else PALE, ecolor=GREY)
        end = max(estimate.mean, high or estimate.mean)
        axes.annotate(f"{estimate.mean:.2f}", (end, place), xytext=(3, -3), textcoords="offset points")
    axes.set_yticks(range(len(names)), names)
    axes.margins(x=0.15)


def save(figure: Figure, path: Path) -> None:
    figure.savefig(path, transparent=True, metadata={"Date": None})
    text = path.read_text(encoding="utf-8")
    path.write_text("".join(f"{line.rstrip()}\n" for line in text.splitlines()), encoding="utf-8")


def draw_all_curves(everything: Sequence[Shown], path: Path) -> None:
    """Draws a small panel for each example."""
    if not everything:
        return
    columns = 3
    lines = -(-len(everything) // columns)
    figure = Figure(figsize=(3 * columns, 2.2 * lines))
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, one in zip(panels, everything, strict=False):
        draw_curves(axes, one)
        axes.set_title(f"{one.example.title}: {one.example.metric}", loc="left", fontsize=8)
    for axes in panels[len(everything) :]:
        axes.set_axis_off()
    figure.tight_layout()
    save(figure, path)
