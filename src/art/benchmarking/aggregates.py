"""Means of logged trajectories: by step, and of the newest step."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from art.benchmarking.load import load_trajectories
from art.benchmarking.metric_column import metric_column
from art.benchmarking.model_key import BenchmarkModelKey
from art.folders import get_models_dir
from art.tracking.history import read_rows

if TYPE_CHECKING:
    import polars

KEYS = ("model", "split", "step")


async def load_aggregated_trajectories(
    project_name: str,
    models: Sequence[str | BenchmarkModelKey] | None = None,
    metrics: Sequence[str] | None = None,
    art_path: str | Path | None = None,
    include_history: bool = False,
) -> polars.DataFrame:
    """One row for each model, split and step: the mean within each group, then the mean of the groups.

    metrics: which, with or without `metric_`; by default reward and every `metric_*` column. include_history:
    add the numbers that `history.jsonl` has for the model and step, under their names there (null where it
    has none; the later row wins).
    """
    df = await load_trajectories(project_name, models, art_path=art_path)
    means = _means(df, metrics)
    if not include_history or means.is_empty():
        return means
    root = Path(get_models_dir(project_name, None if art_path is None else str(art_path)))
    history = await asyncio.to_thread(_histories, root, means["model"].unique().to_list())
    return means if history is None else means.join(history, on=["model", "step"], how="left")


async def load_latest_metrics(
    project_name: str,
    models: Sequence[str | BenchmarkModelKey] | None = None,
    split: str = "val",
    metrics: Sequence[str] | None = None,
    art_path: str | Path | None = None,
) -> polars.DataFrame:
    """One row for each model: its means at the newest step that was logged in `split`."""
    means = await load_aggregated_trajectories(project_name, models, metrics, art_path)
    import polars

    of_split = means.filter(polars.col("split") == split)
    return of_split.filter(polars.col("step") == polars.col("step").max().over("model"))


def _means(df: polars.DataFrame, metrics: Sequence[str] | None) -> polars.DataFrame:
    import polars

    names = ["reward", *(name for name in df.columns if name.startswith("metric_"))]
    if metrics is not None and not df.is_empty():
        names = list(dict.fromkeys(metric_column(df, name) for name in metrics))
    values = [polars.col(name).cast(polars.Float64()).fill_nan(None).mean() for name in names]
    groups = df.group_by(*KEYS, "group_number", maintain_order=True).agg(values)
    means = groups.group_by(*KEYS, maintain_order=True).agg(polars.col(names).mean())
    return means.sort(KEYS)


def _histories(root: Path, models: Sequence[str]) -> polars.DataFrame | None:
    import polars

    rows: dict[tuple[str, int], dict[str, float]] = {}
    for model in models:
        for row in read_rows(root / model / "history.jsonl"):
            numbers = {name: float(value) for name, value in row.items() if isinstance(value, int | float)}
            if "step" in numbers:
                rows.setdefault((model, int(numbers.pop("step"))), {}).update(numbers)
    if not rows:
        return None
    columns = dict.fromkeys(name for numbers in rows.values() for name in numbers)
    return polars.DataFrame(
        {
            "model": [model for model, _ in rows],
            "step": [step for _, step in rows],
            **{name: [numbers.get(name) for numbers in rows.values()] for name in columns},
        },
        schema_overrides=dict.fromkeys(columns, polars.Float64()) | {"step": polars.Int64()},
    )
