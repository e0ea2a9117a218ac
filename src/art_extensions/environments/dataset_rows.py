"""Rows of a dataset as scenarios: read from a file, shuffled, and split without one row in both splits."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from art.environments.adapters.environment import Scenario, content_id
from art.errors import ConfigurationError, extra_needed
from art.process.foreign_files import parse_json

Rows = str | Path | Sequence[Mapping[str, Any]]
"""A file .parquet, .jsonl or .json, or the rows themselves."""
HELD_OUT = 5
"""One row of so many is for "val" where the rows of that split are not given."""


def read_rows(full: str, data: Rows) -> list[dict[str, Any]]:
    """Returns the rows. full: the environment's name. Raises ConfigurationError for a file without rows."""
    if not isinstance(data, str | Path):
        return [dict(row) for row in data]
    path = Path(data)
    try:
        if path.suffix == ".parquet":
            with extra_needed("logs", f"{full}: {path}"):
                import polars
            try:
                return polars.read_parquet(path).to_dicts()
            except (polars.exceptions.PolarsError, polars.exceptions.PanicException) as error:
                raise ValueError(str(error)) from error
        text = path.read_text(encoding="utf-8")
        lines = parse_json(text) if path.suffix == ".json" else map(parse_json, text.splitlines())
        return [dict(row) for row in lines]
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(f"{full}: {path} is no file of rows: {error}") from error


def split_rows(
    full: str,
    rows: Sequence[Mapping[str, Any]],
    val_rows: Sequence[Mapping[str, Any]] | None,
    *,
    sizes: Mapping[str, int],
    seed: int,
) -> dict[str, list[Scenario]]:
    """Returns the scenarios of both splits, each with its `row` as data. Those of "val" are drawn first.

    sizes: the most scenarios of each split. Raises ConfigurationError where no row is left for "train".
    """
    taken: set[str] = set()

    def draw(source: Sequence[Mapping[str, Any]], most: int) -> list[Scenario]:
        order = list(source)
        random.Random(f"{seed}").shuffle(order)
        drawn: list[Scenario] = []
        for row in order:
            content = content_id(json.dumps(row, sort_keys=True, default=str))
            if len(drawn) < most and content not in taken:
                taken.add(content)
                drawn.append(Scenario(f"{full}/{content}", {"row": row}))
        return drawn

    most = sizes["val"]
    if val_rows is None:
        val_rows, most = rows, min(most, max(1, len(rows) // HELD_OUT))
    found = {"val": draw(val_rows, most), "train": draw(rows, sizes["train"])}
    if not found["train"]:
        raise ConfigurationError(f"{full}: no row is left for 'train'; give more rows")
    return found
