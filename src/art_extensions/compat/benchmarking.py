"""Trajectories of several models side by side: as one table, and as means by model and step."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError, TrajectoryLogError, require_extra
from art.gather import gather_trajectories
from art.tracking.folders import ModelPaths, get_models_dir
from art.tracking.model_files import read_history
from art.tracking.names import STEP_COLUMN, route
from art.tracking.rollout_figures import scores
from art.tracking.trajectory_log import lines_of_step, read_stored, rows_frame
from art.tracking.trajectory_rows import double, from_text
from art.trajectories import Trajectory, TrajectoryGroup
from art.wire.quoting import writable

if TYPE_CHECKING:
    import polars

    from art.model import Model


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
    keys = [as_model_key(model) for model in models]
    shown = [
        df.filter(polars.col("model").eq(key.name) & polars.col("split").eq(key.split)).with_columns(
            model=polars.lit(str(key))
        )
        for key in keys
    ]
    return polars.concat(shown) if shown else df.clear()


def as_model_key(model: BenchmarkModelKey | str) -> BenchmarkModelKey:
    """A name alone means its split val."""
    return model if isinstance(model, BenchmarkModelKey) else BenchmarkModelKey(str(model))


def every_model_key(df: polars.DataFrame) -> list[BenchmarkModelKey]:
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
    return filter_rename_model_split(df, every_model_key(df) if models is None else models)


@dataclass(frozen=True, kw_only=True)
class MetricCurve:
    """The mean of a metric at each step that has one, steps rising."""

    label: str
    steps: tuple[int, ...]
    means: tuple[float, ...]

    @property
    def trained(self) -> bool:
        """Returns whether there are several steps; a model with one step is only prompted."""
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


def metric_curves(
    df: polars.DataFrame, metric_name: str, models: Sequence[BenchmarkModelKey | str] | None
) -> list[MetricCurve]:
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
        found.append(MetricCurve(label=label, steps=tuple(rows["step"]), means=tuple(rows["mean"])))
    if not found:
        pairs = sorted(set(df.select("model", "split").rows()))
        asked = "any model" if models is None else ", ".join(repr(str(model)) for model in models)
        raise ValueError(f"no value of {metric_name!r} for {asked}; the table has (model, split) {pairs}")
    return found


_log = logging.getLogger(__name__)

NUMBER_COLUMNS = {"metrics": "metric_", "group_metrics": "group_metric_"}
TEXT_COLUMNS = {"metadata": "metadata_", "group_metadata": "group_metadata_"}
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
    require_extra("logs", "a table of trajectories")
    folder = Path(get_models_dir(project_name, None if art_path is None else str(art_path)))
    names = None if models is None else [as_model_key(model).name for model in models]
    return await asyncio.to_thread(_load_table, folder, names, debug)


def _load_table(folder: Path, names: Sequence[str] | None, debug: bool) -> polars.DataFrame:
    import polars

    frames, groups = [_empty_table()], 0
    for path in _log_files(folder, names):
        try:
            frame = _read_log(path)
        except (TrajectoryLogError, OSError, ValueError, polars.exceptions.PolarsError) as error:
            _log.warning("left out of the table: %s: %s", path, error)
            continue
        if debug:
            _log.info("%d trajectories in %s", frame.height, path)
        frame = frame.with_columns(group_number=polars.col("group_number") + groups)
        groups += frame["group_number"].n_unique()
        frames.append(frame)
    return polars.concat(frames, how="diagonal_relaxed")


def _log_files(folder: Path, names: Sequence[str] | None) -> Iterator[Path]:
    found = sorted(path.name for path in folder.glob("*/")) if names is None else names
    for name in found:
        trajectories = ModelPaths(folder / name).trajectories
        if names is not None and not trajectories.is_dir():
            _log.warning("model %r has no trajectories in %s", name, folder)
        for path in sorted(
            trajectories.glob("*/*"), key=lambda path: (path.parent, path.stem, path.suffix == ".jsonl")
        ):
            if path.suffix in (".yaml", ".yml"):
                _log.warning("left out of the table: %s: YAML logs are not read", path)
            elif path.suffix in (".parquet", ".jsonl"):
                yield path


def _read_log(path: Path) -> polars.DataFrame:
    """The rows of one file; `group_number` counts its groups from 0."""
    import polars

    if not path.stem.isdecimal():
        raise TrajectoryLogError(f"its name {path.stem!r} is not the number of a step")
    columns = ("group_index", "reward", "messages", "logs", *NUMBER_COLUMNS, *TEXT_COLUMNS)
    if path.suffix == ".jsonl":
        frame = rows_frame(lines_of_step(path)).select(columns)
    else:
        frame = read_stored(path, columns).frame
    frame = frame.sort("group_index", maintain_order=True)
    wide = [_spread(frame, column, prefix, polars.Float64()) for column, prefix in NUMBER_COLUMNS.items()]
    wide += [_spread(frame, column, prefix, polars.String()) for column, prefix in TEXT_COLUMNS.items()]
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
    convert = double if dtype == polars.Float64() else _utf8
    return polars.DataFrame(
        [
            polars.Series(prefix + name, [convert(row.get(name)) for row in rows], dtype=dtype)
            for name in names
        ]
    )


def _utf8(value: Any) -> str | None:
    return None if value is None else writable(str(value))


def _empty_table() -> polars.DataFrame:
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


GROUP_KEYS = ("model", "split", "step")


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
    means = _mean_columns(df, metrics)
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


def _mean_columns(df: polars.DataFrame, metrics: Sequence[str] | None) -> polars.DataFrame:
    import polars

    names = ["reward", *(name for name in df.columns if name.startswith("metric_"))]
    if metrics is not None and not df.is_empty():
        names = list(dict.fromkeys(metric_column(df, name) for name in metrics))
    values = [polars.col(name).cast(polars.Float64()).fill_nan(None).mean() for name in names]
    groups = df.group_by(*GROUP_KEYS, "group_number", maintain_order=True).agg(values)
    means = groups.group_by(*GROUP_KEYS, maintain_order=True).agg(polars.col(names).mean())
    return means.sort(GROUP_KEYS)


def _histories(root: Path, models: Sequence[str]) -> polars.DataFrame | None:
    import polars

    rows: dict[tuple[str, int], dict[str, float]] = {}
    for model in models:
        for row in read_history(ModelPaths(root / model).history):
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


def log_constant_metrics_wandb(
    model: Model[Any, Any],
    num_steps: int,
    split_metrics: Mapping[str, Mapping[str, float]],
    logged_run_name: str | None = None,
) -> None:
    """Log the same numbers at each of `num_steps` steps, as a run of its own in the model's project.

    split_metrics: `{"val": {"reward": 0.62}}` becomes `val/reward`. logged_run_name: the run's name and id,
    by default the model's name.

    Raises: ConfigurationError when wandb is not installed or there is nothing to log.
    """
    row = {
        route(name, split): float(value)
        for split, metrics in split_metrics.items()
        for name, value in metrics.items()
    }
    if num_steps < 1 or not row:
        raise ConfigurationError(f"nothing to log: {num_steps=}, {split_metrics=}")
    require_extra("wandb", "a row at Weights & Biases")
    name = logged_run_name or model.name
    run = import_module("wandb").init(
        entity=model.entity, project=model.project, name=name, id=name, resume="allow", reinit="create_new"
    )
    try:
        run.define_metric(STEP_COLUMN)
        for metric in row:
            run.define_metric(metric, step_metric=STEP_COLUMN)
        for step in range(num_steps):
            run.log({STEP_COLUMN: step, **row})
    finally:
        run.finish()


log = logging.getLogger(__name__)


async def benchmark_rollout(
    model: Model[Any, Any], num_rollouts: int, rollout: Callable[[Any], Awaitable[Trajectory]]
) -> float:
    """The mean reward of `num_rollouts` calls of `rollout(model)`, side by side; unscored ones do not count.

    Raises what a rollout raises, and ConfigurationError when no rollout has a reward.
    """
    trajectories = await gather_trajectories(
        (rollout(model) for _ in range(num_rollouts)), pbar_desc=f"benchmark {getattr(model, 'name', model)}"
    )
    rewards = scores(trajectories)
    if not rewards:
        raise ConfigurationError(
            f"benchmark_rollout({num_rollouts=}): there is no reward to take the mean of"
        )
    mean = sum(rewards) / len(rewards)
    log.info("%s: mean reward %.4f of %d rollouts", getattr(model, "name", model), mean, len(rewards))
    return mean


def calculate_step_std_dev(trajectory_groups: Iterable[TrajectoryGroup]) -> float:
    """The mean over groups with several rewards of their population standard deviation; 0 without any."""
    spreads = [pstdev(found) for group in trajectory_groups if len(found := scores(group)) > 1]
    return fmean(spreads) if spreads else 0.0
