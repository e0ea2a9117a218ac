"""The trajectories of a project as one table."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.benchmarking.model_key import BenchmarkModelKey, as_key
from art.errors import TrajectoryLogError
from art.folders import get_models_dir
from art.tracking.trajectory_log.json_text import from_text
from art.tracking.trajectory_log.parquet import read_stored, rows_frame
from art.tracking.trajectory_log.polars_library import require_polars
from art.tracking.trajectory_log.rows import double
from art.tracking.trajectory_log.step_log import lines_of_step

if TYPE_CHECKING:
    import polars

_log = logging.getLogger(__name__)

NUMBERS = {"metrics": "metric_", "group_metrics": "group_metric_"}
WORDS = {"metadata": "metadata_", "group_metadata": "group_metadata_"}
TURN_FIELDS = ("role", "content", "tool_calls", "trainable")


async def load_trajectories(
    project_name: str,
    models: Sequence[str | BenchmarkModelKey] | None = None,
    debug: bool = False,
    art_path: str | Path | None = None,
) -> polars.DataFrame:
    """One row for each trajectory that the models of a project logged, in Parquet or in JSON lines.

    models: their names; all of the project by default. debug: also log what is read. art_path: the folder
    that holds the project, `.art` by default.

    Columns: model, split, step, reward (null when unscored), group_number (one number for each group of the
    table), messages (a list of role, content, tool_calls as JSON, trainable), logs, and one column for each
    name: `metric_*` and `group_metric_*` (numbers), `metadata_*` and `group_metadata_*` (text). Without any
    log the table has no rows. A file that cannot be read is left out, and a warning names it.

    Raises: ConfigurationError when polars is not installed.
    """
    require_polars("tables of trajectories")
    folder = Path(get_models_dir(project_name, None if art_path is None else str(art_path)))
    names = None if models is None else [as_key(model).name for model in models]
    return await asyncio.to_thread(_load, folder, names, debug)


def _load(folder: Path, names: Sequence[str] | None, debug: bool) -> polars.DataFrame:
    import polars

    frames, groups = [_nothing()], 0
    for path in _logs(folder, names):
        try:
            frame = _read(path)
        except (TrajectoryLogError, OSError, ValueError, polars.exceptions.PolarsError) as error:
            _log.warning("left out of the table: %s: %s", path, error)
            continue
        if debug:
            _log.info("%d trajectories in %s", frame.height, path)
        frame = frame.with_columns(group_number=polars.col("group_number") + groups)
        groups += frame["group_number"].n_unique()
        frames.append(frame)
    return polars.concat(frames, how="diagonal_relaxed")


def _logs(folder: Path, names: Sequence[str] | None) -> Iterator[Path]:
    found = sorted(path.name for path in folder.glob("*/")) if names is None else names
    for name in found:
        trajectories = folder / name / "trajectories"
        if names is not None and not trajectories.is_dir():
            _log.warning("model %r has no trajectories in %s", name, folder)
        for path in sorted(
            trajectories.glob("*/*"), key=lambda path: (path.parent, path.stem, path.suffix == ".jsonl")
        ):
            if path.suffix in (".yaml", ".yml"):
                _log.warning("left out of the table: %s: YAML logs are not read", path)
            elif path.suffix in (".parquet", ".jsonl"):
                yield path


def _read(path: Path) -> polars.DataFrame:
    """The rows of one file; `group_number` counts its groups from 0."""
    import polars

    if not path.stem.isdecimal():
        raise TrajectoryLogError(f"its name {path.stem!r} is not the number of a step")
    columns = ("group_index", "reward", "messages", "logs", *NUMBERS, *WORDS)
    if path.suffix == ".jsonl":
        frame = rows_frame(lines_of_step(path)).select(columns)
    else:
        frame = read_stored(path, columns).frame
    frame = frame.sort("group_index", maintain_order=True)
    wide = [_spread(frame, column, prefix, polars.Float64()) for column, prefix in NUMBERS.items()]
    wide += [_spread(frame, column, prefix, polars.String()) for column, prefix in WORDS.items()]
    known = frame.select(
        polars.lit(path.parents[2].name).alias("model"),
        polars.lit(path.parent.name).alias("split"),
        polars.lit(int(path.stem), dtype=polars.Int64()).alias("step"),
        polars.col("reward").cast(polars.Float64()),
        (polars.col("group_index").rank("dense").cast(polars.Int64()) - 1).alias("group_number"),
        polars.col("messages").list.eval(
            polars.struct(polars.element().struct.field(name) for name in TURN_FIELDS)
        ),
        polars.col("logs") if "logs" in frame.columns else polars.lit(None).alias("logs"),
    )
    return polars.concat([known, *wide], how="horizontal")


def _spread(frame: polars.DataFrame, column: str, prefix: str, dtype: Any) -> polars.DataFrame:
    """A column for each name in a column of JSON objects."""
    import polars

    texts: Iterable[str | None] = frame[column] if column in frame.columns else [None] * frame.height
    rows = [from_text(text) if text else {} for text in texts]
    names = dict.fromkeys(name for row in rows for name in row)
    convert = double if dtype == polars.Float64() else _word
    return polars.DataFrame(
        [
            polars.Series(prefix + name, [convert(row.get(name)) for row in rows], dtype=dtype)
            for name in names
        ]
    )


def _word(value: Any) -> str | None:
    return None if value is None else str(value).encode("utf-8", "replace").decode("utf-8")


def _nothing() -> polars.DataFrame:
    import polars

    text = polars.String()
    turn = {"role": text, "content": text, "tool_calls": text, "trainable": polars.Boolean()}
    return polars.DataFrame(
        schema={
            "model": text,
            "split": text,
            "step": polars.Int64(),
            "reward": polars.Float64(),
            "group_number": polars.Int64(),
            "messages": polars.List(polars.Struct(turn)),
            "logs": polars.List(text),
        }
    )
