"""What training gained: the first step against the last, beside models that were only prompted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from art.benchmarking.figure import GREY, new_chart
from art.benchmarking.metric_column import Curve, curves
from art.benchmarking.model_key import BenchmarkModelKey

if TYPE_CHECKING:
    import polars
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHARE_LIMIT = 1.01
"""Values up to here, whatever their sign, are shares and are shown in percent."""
LOSS_COLOR = "#c44e52"


def percentage_comparison_bar_chart(
    df: polars.DataFrame,
    metric_name: str,
    models: Sequence[BenchmarkModelKey | str] | None = None,
    title: str | None = None,
    y_label: str | None = None,
    perfect_score: float | None = None,
    num_decimals: int = 0,
) -> Figure:
    """A bar for each model: grey for one with a single step; for a trained one its first step, with the
    difference to its last step hatched on top and marked `RL +12%`.

    The difference is in points of the axis: 50 % to 62 % is +12 %. Values between -1 and 1 are shown in
    percent, others as they are. perfect_score: a horizontal line at the best that there is, in the metric's
    own unit. Other arguments and errors: see `training_progress_chart`.
    """
    found = curves(df, metric_name, models)
    ends = [mean for curve in found for mean in (curve.means[0], curve.means[-1])]
    shares = max(map(abs, ends)) <= SHARE_LIMIT
    scale, unit = (100.0, "%") if shares else (1.0, "")

    def text(value: float, sign: str = "") -> str:
        return f"{value * scale:{sign}.{num_decimals}f}{unit}"

    figure, axes = new_chart(max(4.0, 1.4 * len(found) + 1.5), 5)
    for place, curve in enumerate(found):
        _draw_bar(axes, place, curve, scale=scale, text=text)
    if perfect_score is not None:
        axes.axhline(perfect_score * scale, linestyle="--", linewidth=1, color=GREY, label="Perfect score")
        axes.legend(loc="best")
    axes.set_xticks(range(len(found)), [curve.label for curve in found], rotation=20, ha="right")
    axes.set_title(title if title is not None else f"{metric_name}: before and after training")
    axes.set_ylabel(y_label if y_label is not None else f"{metric_name} (%)" if shares else metric_name)
    axes.margins(y=0.12)
    figure.tight_layout()
    return figure


def _draw_bar(axes: Axes, place: int, curve: Curve, *, scale: float, text: Callable[..., str]) -> None:
    first, last = curve.means[0], curve.means[-1]
    gain = last - first
    color = f"C{place % 10}" if curve.trained else GREY
    axes.bar(place, min(first, last) * scale if curve.trained else last * scale, width=0.6, color=color)
    top = max(first, last)
    if curve.trained:
        edge = color if gain >= 0 else LOSS_COLOR
        bottom = min(first, last) * scale
        axes.bar(
            place, abs(gain) * scale, bottom=bottom, width=0.6, facecolor="none", edgecolor=edge, hatch="//"
        )
        middle = (first + last) / 2 * scale
        box = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
        axes.text(
            place, middle, f"RL {text(gain, '+')}", ha="center", va="center", fontsize="small", bbox=box
        )
    axes.annotate(
        text(last), (place, top * scale), xytext=(0, 3), textcoords="offset points", ha="center", va="bottom"
    )
