"""Curves of a run: a number for each step, with the interval of its mean; accounting and times of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from art.tracking.rollout_figures import error_of_sums
from art.ui.run_files import RunFiles
from art.wire.jobs import STEP_PARTS, StepPart, part_metric

Z_95 = 1.96
SMALL_CHARTS = (
    ("loss/entropy", "Entropy", "nats"),
    ("loss/grad_norm", "Gradient norm", ""),
    ("train/completion_tokens", "Completion tokens", "mean of a rollout"),
    ("loss/kl", "KL to the reference", "nats"),
    ("train/exception_rate", "Failed rollouts", "share"),
)
"""Metric, title and unit of the charts below the reward."""


@dataclass(frozen=True)
class Curve:
    """One line of a chart, with its band."""

    label: str
    values: list[float | None]
    low: list[float | None] = field(default_factory=list)
    high: list[float | None] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Returns plain values for the chart's script."""
        return {"label": self.label, "values": self.values, "low": self.low, "high": self.high}


def reward_curve(run: RunFiles, split: str, groups: Mapping[int, Sequence[tuple[float, int]]]) -> Curve:
    """Returns the mean reward of each step of a split with its 95 % interval.

    groups: sums and numbers of the rewards of the groups, by step, where the history has no standard error.
    """
    values: list[float | None] = []
    low: list[float | None] = []
    high: list[float | None] = []
    for step, row in run.history.steps.items():
        value, error = row.get(f"{split}/reward"), reward_error(row, split, groups.get(step, ()))
        values.append(value)
        low.append(None if value is None or error is None else value - Z_95 * error)
        high.append(None if value is None or error is None else value + Z_95 * error)
    return Curve(f"{split} reward", values, low, high)


def reward_error(row: Mapping[str, float], split: str, groups: Sequence[tuple[float, int]]) -> float | None:
    """Returns the standard error that a row of the history has, else that of the groups."""
    known = row.get(f"{split}/reward_sem")
    return error_of_sums(groups) if known is None else known


def smooth(values: Sequence[float | None], weight: float) -> list[float | None]:
    """Returns an exponential mean without the bias of its beginning. weight: of what was before, 0 to 1."""
    smoothed: list[float | None] = []
    total, norm = 0.0, 0.0
    for value in values:
        if value is None:
            smoothed.append(None)
            continue
        total, norm = total * weight + value * (1 - weight), norm * weight + (1 - weight)
        smoothed.append(total / norm if norm else value)
    return smoothed


def chart_json(steps: Sequence[int], curves: Sequence[Curve], title: str) -> dict[str, Any]:
    """Returns what the chart's script draws."""
    return {"title": title, "steps": list(steps), "curves": [one.to_json() for one in curves]}


def small_charts(run: RunFiles) -> list[dict[str, Any]]:
    """Returns the charts of the metrics of `SMALL_CHARTS` that the run has."""
    steps = list(run.history.steps)
    charts = []
    for name, title, unit in SMALL_CHARTS:
        values = run.history.column(name)
        known = [value for value in values if value is not None]
        if len(known) > 1 and any(known):
            charts.append(
                {
                    "title": title,
                    "unit": unit,
                    "metric": name,
                    "last": known[-1],
                    "data": chart_json(steps, [Curve(title, values)], title),
                }
            )
    return charts


MOST_BARS = 120
"""Columns of the picture of a run's seconds; of a longer run each is the mean of several steps."""


def seconds_picture(run: RunFiles) -> dict[str, Any] | None:
    """Returns what the seconds of each step went to, as rectangles of a picture 100 high, and their sums over
    the run, the largest first; None where no step of the run has them.
    """
    found = {step: _parts_of(row) for step, row in run.history.steps.items()}
    known = [(step, parts) for step, parts in found.items() if any(parts.values())]
    if not known:
        return None
    width = -(-len(known) // MOST_BARS)
    columns = [known[first : first + width] for first in range(0, len(known), width)]
    means = [
        {part: sum(parts[part] for _, parts in column) / len(column) for part in STEP_PARTS}
        for column in columns
    ]
    tallest = max(sum(mean.values()) for mean in means)
    whole = sum(sum(parts.values()) for _, parts in known)
    sums = [(part, sum(parts[part] for _, parts in known)) for part in STEP_PARTS]
    return {
        "columns": len(columns),
        "bars": [bar for place, mean in enumerate(means) for bar in _stacked(place, mean, tallest)],
        "tallest": tallest,
        "parts": [
            {"part": part, "seconds": seconds / len(known), "share": 100 * seconds / whole}
            for part, seconds in sorted(sums, key=lambda one: -one[1])
            if seconds
        ],
    }


def _parts_of(row: Mapping[str, float]) -> dict[StepPart, float]:
    return {part: max(0.0, row.get(part_metric(part), 0.0)) for part in STEP_PARTS}


def _stacked(place: int, seconds: Mapping[StepPart, float], tallest: float) -> list[dict[str, Any]]:
    """The rectangles of one column, from the bottom up, in the order of a step."""
    bars, top = [], 100.0
    for part in STEP_PARTS:
        height = 100 * seconds[part] / tallest
        top -= height
        if height:
            bars.append({"part": part, "x": place, "y": round(top, 2), "height": round(height, 2)})
    return bars


def sparkline(values: Sequence[float | None], width: int = 120, height: int = 28) -> str:
    """Returns the points of an SVG line; empty with less than two values."""
    known = [(number, value) for number, value in enumerate(values) if value is not None]
    if len(known) < 2:
        return ""
    lowest, highest = min(v for _, v in known), max(v for _, v in known)
    wide, tall = (len(values) - 1) or 1, (highest - lowest) or 1.0
    points = (
        f"{2 + (width - 4) * number / wide:.1f},{height - 3 - (height - 6) * (value - lowest) / tall:.1f}"
        for number, value in known
    )
    return " ".join(points)


def drawn_of(row: Mapping[str, float]) -> dict[str, int]:
    """Returns how the step's scenarios were drawn, from its row of the history: how many are `known`,
    `settled` and `left_out`; empty where nobody counted.
    """
    begin = "train/scenarios/"
    return {name.removeprefix(begin): int(value) for name, value in row.items() if name.startswith(begin)}


def sheet_of(row: Mapping[str, float]) -> dict[str, dict[str, int]]:
    """Returns the step's accounting from its row of the history: rollouts and tokens by fate.

    `started` is among them, first; empty where the row has none.
    """
    sheet: dict[str, dict[str, int]] = {}
    for name, value in row.items():
        what = name.removeprefix("data/sheet/")
        fate, _, unit = what.rpartition("_")
        if name != what and unit in ("rollouts", "tokens") and fate:
            sheet.setdefault(fate, {"rollouts": 0, "tokens": 0})[unit] = int(value)
    order = sorted(sheet, key=lambda fate: (fate != "started", fate != "trained", -sheet[fate]["rollouts"]))
    return {fate: sheet[fate] for fate in order}


def times_of(row: Mapping[str, float]) -> list[tuple[str, float]]:
    """Returns the seconds of a step by their name, the longest first."""
    found = [
        (name.removeprefix("time/").removesuffix("_s").replace("_", " "), value)
        for name, value in row.items()
        if name.startswith("time/") and name.endswith("_s") and "/cum/" not in name
    ]
    return sorted(found, key=lambda one: -one[1])


def costs_of(row: Mapping[str, float]) -> dict[str, float]:
    """Returns the US dollars of a step by what they were for; sums of others are left out.

    >>> costs_of({"costs/train/judge/ruler": 1.0, "costs/train": 1.0, "costs/gpu": 2.0, "costs/cum/gpu": 9.0})
    {'train judge ruler': 1.0, 'gpu': 2.0}
    """
    found = {
        name.removeprefix("costs/"): value
        for name, value in row.items()
        if name.startswith("costs/") and not name.startswith(("costs/cum/", "costs/all"))
    }
    sums = {path for path in found if any(other.startswith(f"{path}/") for other in found)}
    return {path.replace("/", " "): usd for path, usd in found.items() if path not in sums}
