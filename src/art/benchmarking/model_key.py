"""Which model's rows to show, from which split, under which name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars


@dataclass(frozen=True)
class BenchmarkModelKey:
    """`BenchmarkModelKey("agent-007", "Ours", "val")`: by default the name itself, and the split val."""

    name: str
    display_name: str | None = None
    split: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "display_name", self.display_name or self.name)
        object.__setattr__(self, "split", self.split or "val")

    def __str__(self) -> str:
        return str(self.display_name)


def filter_rename_model_split(
    df: polars.DataFrame, models: Iterable[BenchmarkModelKey | str]
) -> polars.DataFrame:
    """The rows of these models in their splits, in this order; `model` is the name to display."""
    import polars

    if "model" not in df.columns:
        return df
    keys = [as_key(model) for model in models]
    shown = [
        df.filter(polars.col("model").eq(key.name) & polars.col("split").eq(key.split)).with_columns(
            model=polars.lit(str(key))
        )
        for key in keys
    ]
    return polars.concat(shown) if shown else df.clear()


def as_key(model: BenchmarkModelKey | str) -> BenchmarkModelKey:
    """A name alone means its split val."""
    return model if isinstance(model, BenchmarkModelKey) else BenchmarkModelKey(str(model))


def every_key(df: polars.DataFrame) -> list[BenchmarkModelKey]:
    """All models and splits in the order of their first rows; one of several splits is named with it."""
    pairs = df.select("model", "split").unique(maintain_order=True).rows()
    models = [model for model, _ in pairs]
    return [
        BenchmarkModelKey(model, f"{model} ({split})" if models.count(model) > 1 else model, split)
        for model, split in pairs
    ]


def select_models(df: polars.DataFrame, models: Sequence[BenchmarkModelKey | str] | None) -> polars.DataFrame:
    """The rows to show: those of `models`, or of all models, each split by itself."""
    if "model" not in df.columns:
        return df
    return filter_rename_model_split(df, every_key(df) if models is None else models)
