"""Metrics of the table of trajectories: their columns, and their means by model and step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from art.benchmarking.model_key import BenchmarkModelKey, select_models

if TYPE_CHECKING:
    import polars


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The mean of a metric at each step that has one, steps rising."""

    label: str
    steps: tuple[int, ...]
    means: tuple[float, ...]

    @property
    def trained(self) -> bool:
        """Whether there are several steps; a model with one step is only prompted."""
        return len(self.steps) > 1


def metric_column(df: polars.DataFrame, metric_name: str) -> str:
    """The column of a metric: its own name, or with `metric_` before it.

    Raises: ValueError that lists the columns.
    """
    for name in (metric_name, f"metric_{metric_name}"):
        if name in df.columns:
            return name
    raise ValueError(
        f"no column {metric_name!r} or {f'metric_{metric_name}'!r} among the columns {sorted(df.columns)}"
    )


def curves(
    df: polars.DataFrame, metric_name: str, models: Sequence[BenchmarkModelKey | str] | None
) -> list[Curve]:
    """One curve for each model that has the metric, in the order asked for.

    Trajectories without the metric, or with one that is not a number, count in no mean. Raises: ValueError
    when nothing is left.
    """
    import polars

    column = metric_column(df, metric_name)
    selected = select_models(df, models)
    value = polars.col(column).cast(polars.Float64())
    known = selected.filter(value.is_not_null() & value.is_not_nan())
    means = known.group_by("model", "step", maintain_order=True).agg(value.mean().alias("mean"))
    found = []
    for label in means["model"].unique(maintain_order=True):
        rows = means.filter(polars.col("model") == label).sort("step")
        found.append(Curve(label=label, steps=tuple(rows["step"]), means=tuple(rows["mean"])))
    if not found:
        pairs = sorted(set(df.select("model", "split").rows()))
        asked = "any model" if models is None else ", ".join(repr(str(model)) for model in models)
        raise ValueError(f"no value of {metric_name!r} for {asked}; the table has (model, split) {pairs}")
    return found
