"""How a metric changed over the training steps, beside models that were only prompted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from art.benchmarking.figure import GREY, new_chart
from art.benchmarking.metric_column import curves
from art.benchmarking.model_key import BenchmarkModelKey

if TYPE_CHECKING:
    import polars
    from matplotlib.figure import Figure


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
    found = curves(df, metric_name, models)
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
