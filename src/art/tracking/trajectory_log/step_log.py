"""What was logged at one step: a Parquet file, JSON lines where polars is not installed, or both."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from art.errors import TrajectoryLogError
from art.tracking.trajectory_log.exact_lines import append_lines, read_lines
from art.tracking.trajectory_log.parquet import (
    Stored,
    append_groups,
    read_parquet,
    read_stored,
    stored_groups,
)
from art.tracking.trajectory_log.polars_library import INSTALL, has_polars
from art.trajectories import Trajectory, TrajectoryGroup

_log = logging.getLogger(__name__)


def log_groups(split_folder: Path, step: int, groups: Iterable[TrajectoryGroup]) -> None:
    """Add groups to the file of a step, in a split's folder: `0003.parquet`, or `0003.jsonl` without polars.

    Raises: TrajectoryLogError when the Parquet file cannot be read, OSError, DeadlineError.
    """
    if has_polars():
        append_groups(split_folder / f"{step:04d}.parquet", groups)
    else:
        _say_that_it_is_lines()
        append_lines(split_folder / f"{step:04d}.jsonl", groups)


def read_trajectory_groups(
    path: str | Path, trajectory_class: type[Trajectory] = Trajectory
) -> list[TrajectoryGroup]:
    """The groups of a log, equal to those that were written: of a `.jsonl` file, or of a Parquet file and the
    JSON lines that a program without polars logged beside it. If only those are there, they are all.

    trajectory_class: the subclass that the trajectories were of; without it, fields that `Trajectory` lacks
    are attributes of a `LoggedTrajectory`. Files of older programs, which hold less, are read as well: their
    trainable turns become choices without log probabilities.

    Raises: TrajectoryLogError when the file is missing, damaged, or no trajectory log; ConfigurationError
    when it is Parquet and polars is not installed.
    """
    path = Path(path)
    if path.suffix == ".jsonl":
        return _lines(path, trajectory_class)
    beside = path.with_suffix(".jsonl")
    if not beside.exists():
        return read_parquet(path, trajectory_class)
    if not path.exists():
        return _lines(beside, trajectory_class)
    stored = read_stored(path)
    groups = stored_groups(path, stored, trajectory_class)
    return groups + _lines(beside, trajectory_class, beside=stored)


def read_trajectory_groups_parquet(
    path: str | Path, trajectory_class: type[Trajectory] = Trajectory
) -> list[TrajectoryGroup]:
    """`read_trajectory_groups`, as it was called when there were Parquet files only."""
    return read_trajectory_groups(path, trajectory_class)


def lines_of_step(path: Path, trajectory_class: type[Trajectory] = Trajectory) -> list[TrajectoryGroup]:
    """The groups of JSON lines that no Parquet file beside them holds.

    Raises: as `read_trajectory_groups`.
    """
    parquet = path.with_suffix(".parquet")
    stored = read_stored(parquet, columns=("group_index",)) if parquet.exists() else None
    return _lines(path, trajectory_class, beside=stored)


def _lines(
    path: Path, trajectory_class: type[Trajectory], *, beside: Stored | None = None
) -> list[TrajectoryGroup]:
    after = beside.taken if beside else None
    try:
        lines = read_lines(path, trajectory_class, beside=beside is not None, after=after)
    except (OSError, TrajectoryLogError) as error:
        raise TrajectoryLogError(f"trajectory log {str(path)!r} cannot be read: {error}") from error
    if lines.torn:
        _log.warning("%d bytes at the end of %s are an unfinished line: left out", lines.torn, path)
    return lines.groups


@cache
def _say_that_it_is_lines() -> None:
    """Once a process."""
    _log.warning(
        "polars is not installed, so trajectories are logged as JSON lines instead of Parquet files. Nothing "
        "is lost: for Parquet, %s; `art migrate PATH` then converts what is there",
        INSTALL,
    )
