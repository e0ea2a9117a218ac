"""Curves of a run: a number for each step, with the interval of its mean; accounting and costs of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from art.tracking.rollout_figures import error_of_sums, range_of_scores
from art_extensions.ui.conversation import visible
from art_extensions.ui.formats import number
from art_extensions.ui.index import RolloutIndex
from art_extensions.ui.run_files import RunFiles

Z_95 = 1.96
REWARDED = ("train", "val", "test")
"""Splits, in the order of their curves."""
_REWARD_NAMES = tuple(f"{split}/{name}" for split in REWARDED for name in ("reward", "reward_max"))
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
    """One line of a chart, with its band; or points, each with its interval."""

    label: str
    values: list[float | None]
    low: list[float | None] = field(default_factory=list)
    high: list[float | None] = field(default_factory=list)
    points: bool = False
    """Whether only some steps were measured: they are drawn as points, with no line between."""

    def to_json(self) -> dict[str, Any]:
        """Returns plain values for the chart's script."""
        return dict(vars(self))


@dataclass(frozen=True)
class RewardStatistics:
    """The standard errors and intervals of the mean rewards of a run, by split and step.

    group_sums: sums and numbers of the rewards of the groups, where the history has no standard error.
    within: the range that all rewards of the run keep, which a mean cannot leave.
    """

    steps: Mapping[int, Mapping[str, float]]
    group_sums: Mapping[str, Mapping[int, Sequence[tuple[float, int]]]]
    within: tuple[float, float]

    @classmethod
    def of_run(cls, run: RunFiles, index: RolloutIndex) -> RewardStatistics:
        """Returns those of a run, whose rollouts the index has."""
        steps = run.history.steps
        splits = [split for split in REWARDED if any(f"{split}/reward" in row for row in steps.values())]
        means = [row[name] for row in steps.values() for name in _REWARD_NAMES if name in row]
        return cls(
            steps,
            {split: index.group_sums(run.key, split, _without_error(steps, split)) for split in splits},
            range_of_scores([*means, *index.extreme_rewards(run.key)]),
        )

    def interval(self, split: str, step: int) -> tuple[float, float] | None:
        """Returns the 95 % interval of a mean reward, inside the range of the rewards."""
        row = self.steps.get(step, {})
        value = row.get(f"{split}/reward")
        error = row.get(f"{split}/reward_sem")
        if error is None:
            error = error_of_sums(self.group_sums.get(split, {}).get(step, ()))
        if value is None or error is None:
            return None
        return max(value - Z_95 * error, self.within[0]), min(value + Z_95 * error, self.within[1])

    def curve(self, split: str) -> Curve:
        """Returns the mean reward of each step of a split: a line of training, points of what is held out."""
        ends = [self.interval(split, step) for step in self.steps]
        return Curve(
            f"{split} reward",
            [row.get(f"{split}/reward") for row in self.steps.values()],
            [None if one is None else one[0] for one in ends],
            [None if one is None else one[1] for one in ends],
            points=split != "train",
        )

    def curves(self) -> list[Curve]:
        """Returns the curves of all splits that have rewards, training first."""
        return [self.curve(split) for split in self.group_sums]


def _without_error(steps: Mapping[int, Mapping[str, float]], split: str) -> list[int]:
    """The steps whose standard error the history lacks: older runs, and logs of other programs."""
    value, error = f"{split}/reward", f"{split}/reward_sem"
    return [step for step, row in steps.items() if value in row and error not in row]


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
        if len(set(known)) > 1:  # a line that never moves says no more than its number
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


def metric_chart(run: RunFiles, shown: str) -> dict[str, Any] | None:
    """Returns the chart of any metric by its name on the pages; None where no step has it. What was held out
    stands beside the same metric of training.
    """
    names = {visible(name): name for name in run.history.names()}
    if (name := names.get(shown)) is None:
        return None
    values = run.history.column(name)
    curves = [Curve(shown, values, points=name.startswith(("val/", "test/")))]
    split, _, metric = name.partition("/")
    held_out = f"val/{metric}"
    if split == "train" and held_out in names.values():
        curves.append(Curve(visible(held_out), run.history.column(held_out), points=True))
    known = [value for value in values if value is not None]
    return {"last": number(known[-1]), **chart_json(list(run.history.steps), curves, shown)}


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
