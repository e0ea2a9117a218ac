"""Charts of several models: a metric over the training steps, and the first step against the last.

matplotlib is loaded when the first chart is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from art.errors import require_extra
from art_extensions.compat.benchmarking import BenchmarkModelKey, MetricCurve, metric_curves

if TYPE_CHECKING:
    import polars
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


GREY = "#8c8c8c"
GRID = "#e5e5e5"


def new_chart(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of so many inches that `plt.show()` knows. No setting outside of it is changed.

    Raises: MissingExtraError when matplotlib is not installed.
    """
    require_extra("plotting", "a chart")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(width, height), dpi=300)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=GRID)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


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
    found = metric_curves(df, metric_name, models)
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


def _draw_bar(axes: Axes, place: int, curve: MetricCurve, *, scale: float, text: Callable[..., str]) -> None:
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


def training_progress_chart(
    df: polars.DataFrame,
    metric_name: str,
    models: Sequence[BenchmarkModelKey | str] | None = None,
    title: str | None = None,
    x_label: str | None = None,
    y_label: str | None = None,
    perfect_score: float | None = None,
    legend_loc: str = "lower right",
) -> Figure:
    """A line for each model over its steps: the mean of the metric at each.

    df: the table of `load_trajectories`. metric_name: a metric, or a column such as "reward". models: which,
    in which split and under which names; all by default, each split by itself. A model with one step is a
    dashed horizontal line, dotted where another line is already drawn at its height. perfect_score: a
    horizontal line at the best that there is.

    Raises: ValueError when there is no such metric or no value to draw, ConfigurationError without
    matplotlib.
    """
    found = metric_curves(df, metric_name, models)
    figure, axes = new_chart(8, 5)
    heights: list[float] = []
    for number, curve in enumerate(found):
        color = f"C{number % 10}"
        if curve.trained:
            axes.plot(curve.steps, curve.means, marker="o", markersize=4, color=color, label=curve.label)
            continue
        [height] = curve.means
        drawn = any(abs(height - other) < 1e-9 for other in heights)
        axes.axhline(height, linestyle=":" if drawn else "--", color=color, label=curve.label)
        heights.append(height)
    if perfect_score is not None:
        axes.axhline(perfect_score, linestyle="-", linewidth=1, color=GREY, label="Perfect score")
    axes.set_title(title if title is not None else f"{metric_name} over training")
    axes.set_xlabel(x_label if x_label is not None else "Step")
    axes.set_ylabel(y_label if y_label is not None else metric_name)
    axes.locator_params(axis="x", integer=True)  # there is no step 2.5
    axes.legend(loc=legend_loc)
    figure.tight_layout()
    return figure
