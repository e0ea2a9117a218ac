"""Parquet files of trajectory groups: written whole, appended to, read back equal.

    append_groups(folder / "trajectories" / "train" / "0003.parquet", groups)
    groups == read_trajectory_groups_parquet(folder / "trajectories" / "train" / "0003.parquet")

The first columns are those that code for older logs reads; see `columns`. A file is complete at any moment:
it is written beside and moved into place.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Iterable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING

from art.errors import TrajectoryLogError
from art.tracking.trajectory_log.columns import EMPTY_GROUPS, schema
from art.tracking.trajectory_log.folder_lock import locked
from art.tracking.trajectory_log.group_rows import from_rows, to_rows
from art.tracking.trajectory_log.json_text import from_text, to_text
from art.tracking.trajectory_log.rows import Row
from art.trajectories import Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    import polars


def write_trajectory_groups_parquet(groups: Iterable[TrajectoryGroup], path: str | Path) -> None:
    """Write groups to a file of their own, in place of what is there. Compressed with zstd."""
    path = Path(path)
    with locked(path.parent):
        replace_log(path, groups)


def replace_log(path: Path, groups: Iterable[TrajectoryGroup]) -> None:
    """`write_trajectory_groups_parquet` for a caller who holds the folder's lock."""
    rows, empty = to_rows(groups)
    _replace(path, _frame(rows), empty)


def append_groups(path: str | Path, groups: Iterable[TrajectoryGroup]) -> None:
    """Add groups to a file, which is made if it is not there. Several processes may do so at once.

    Raises: TrajectoryLogError when the file cannot be read (it is left as it is), DeadlineError when
    another process holds the folder's lock for too long.
    """
    path = Path(path)
    with locked(path.parent):
        if not path.exists():
            replace_log(path, groups)
            return
        import polars

        frame, known_empty = read_frame(path)
        taken = [row["group_index"] for row in known_empty] + frame["group_index"].drop_nulls().to_list()
        rows, empty = to_rows(groups, first_index=max(taken, default=-1) + 1)
        joined = polars.concat([frame, _frame(rows)], how="diagonal_relaxed")
        _replace(path, joined, known_empty + empty)


def read_trajectory_groups_parquet(
    path: str | Path, trajectory_class: type[Trajectory] = Trajectory
) -> list[TrajectoryGroup]:
    """The groups of a file, equal to those that were written.

    trajectory_class: the subclass that the trajectories were of; without it, fields that `Trajectory` lacks
    are attributes of a `LoggedTrajectory`. Files of older programs, which hold less, are read as well: their
    trainable turns become choices without log probabilities.

    Raises: TrajectoryLogError when the file is missing, damaged, or no trajectory log.
    """
    frame, empty = read_frame(Path(path))
    try:
        return from_rows(frame.iter_rows(named=True), empty, trajectory_class)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        wanted = "" if trajectory_class is Trajectory else f" as {trajectory_class.__name__}"
        raise TrajectoryLogError(f"rows of {str(path)!r} cannot be read{wanted}: {error!r}") from error


def parquet_bytes(groups: Iterable[TrajectoryGroup]) -> int:
    """How large a file of these groups would be."""
    buffer = BytesIO()
    rows, empty = to_rows(groups)
    _write(_frame(rows), empty, buffer)
    return buffer.tell()


def rows_frame(groups: Iterable[TrajectoryGroup]) -> polars.DataFrame:
    """The rows as they would be stored. Groups without a trajectory have none."""
    return _frame(to_rows(groups)[0])


def read_frame(path: Path, columns: Collection[str] | None = None) -> tuple[polars.DataFrame, list[Row]]:
    """The rows as they are stored, and the records of groups that have no row. columns: only these, as far as
    the file has them.
    """
    import polars

    try:
        # The bytes, not the path: a path's `*` and `split=` would mean something to polars.
        data = path.read_bytes()
        stored = polars.read_parquet_schema(BytesIO(data))
        wanted = [name for name in stored if columns is None or name in columns]
        frame = polars.read_parquet(BytesIO(data), columns=wanted, hive_partitioning=False)
        # Other writers leave a struct's field out, or have another width of numbers.
        frame = frame.cast({name: kind for name, kind in schema().items() if name in wanted})
        empty = polars.read_parquet_metadata(BytesIO(data)).get(EMPTY_GROUPS)
    except (OSError, polars.exceptions.PolarsError) as error:
        raise TrajectoryLogError(f"trajectory log {str(path)!r} cannot be read: {error}") from error
    if missing := [name for name in ("group_index", "reward", "messages") if name not in stored]:
        raise TrajectoryLogError(
            f"{str(path)!r} is no trajectory log: it has no column {missing[0]!r}, only {list(stored)}"
        )
    return frame, from_text(empty) if empty else []


def _frame(rows: list[Row]) -> polars.DataFrame:
    import polars

    return polars.DataFrame(rows, schema=schema(), orient="row")


def _write(frame: polars.DataFrame, empty: list[Row], file: IO[bytes]) -> None:
    frame.write_parquet(file, compression="zstd", metadata={EMPTY_GROUPS: to_text(empty)} if empty else None)


def _replace(path: Path, frame: polars.DataFrame, empty: list[Row]) -> None:
    """Write beside and move into place. Call it under the folder's lock."""
    prefix = f".{path.name}."
    for torn in path.parent.glob(f"{prefix}*.part"):  # left by a killed writer; the lock says it is dead
        torn.unlink(missing_ok=True)
    fresh = path.parent / f"{prefix}{secrets.token_hex(4)}.part"
    try:
        with fresh.open("xb") as file:
            _write(frame, empty, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        with suppress(OSError):  # the first error is the one to tell
            fresh.unlink(missing_ok=True)
        raise
