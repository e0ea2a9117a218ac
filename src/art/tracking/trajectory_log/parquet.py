"""Parquet files of trajectory groups: written whole, appended to, read back equal.

    append_groups(folder / "trajectories" / "train" / "0003.parquet", groups)
    groups == read_parquet(folder / "trajectories" / "train" / "0003.parquet")

The first columns are those that code for older logs reads; see `columns`. A file is complete at any moment:
it is written beside and moved into place.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from glob import escape
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING

from art.errors import TrajectoryLogError
from art.tracking.folder_lock import locked
from art.tracking.trajectory_log.columns import EMPTY_GROUPS, TAKEN, schema
from art.tracking.trajectory_log.exact_lines import Taken
from art.tracking.trajectory_log.group_rows import from_rows, to_rows
from art.tracking.trajectory_log.json_text import from_text, to_text
from art.tracking.trajectory_log.polars_library import require_polars
from art.tracking.trajectory_log.rows import Row
from art.trajectories import Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    import polars


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What a file holds. empty: records of groups that have no row. taken: of the JSON lines beside it."""

    frame: polars.DataFrame
    empty: list[Row] = field(default_factory=list)
    taken: Taken | None = None


def write_trajectory_groups_parquet(groups: Iterable[TrajectoryGroup], path: str | Path) -> None:
    """Write groups to a file of their own, in place of what is there. Compressed with zstd.

    Raises: ConfigurationError when polars is not installed, DeadlineError when another process holds the
    folder's lock for too long.
    """
    require_polars("Parquet files")
    path = Path(path)
    rows, empty = to_rows(groups)
    with locked(path.parent):
        _replace(path, Stored(frame=_frame(rows), empty=empty))


def append_groups(path: str | Path, groups: Iterable[TrajectoryGroup]) -> None:
    """Add groups to a file, which is made if it is not there. Several processes may do so at once.

    Raises: ConfigurationError when polars is not installed, TrajectoryLogError when the file cannot be read
    (it is left as it is), DeadlineError when another process holds the folder's lock for too long.
    """
    require_polars("Parquet files")
    path = Path(path)
    with locked(path.parent):
        add_groups(path, groups)


def add_groups(
    path: Path,
    groups: Iterable[TrajectoryGroup],
    *,
    taken: Taken | None = None,
    check: Callable[[Path], None] | None = None,
) -> None:
    """`append_groups` for a caller who holds the folder's lock.

    taken: the JSON lines that the groups come from; check: is given the new file before it takes its place,
    and raises if it may not.
    """
    known = read_stored(path) if path.exists() else Stored(frame=_frame([]))
    indexes = [row["group_index"] for row in known.empty] + known.frame["group_index"].drop_nulls().to_list()
    rows, empty = to_rows(groups, first_index=max(indexes, default=-1) + 1)
    import polars

    joined = polars.concat([known.frame, _frame(rows)], how="diagonal_relaxed")
    _replace(path, Stored(frame=joined, empty=known.empty + empty, taken=taken or known.taken), check)


def read_parquet(path: Path, trajectory_class: type[Trajectory] = Trajectory) -> list[TrajectoryGroup]:
    """The groups of a Parquet file alone. Raises: ConfigurationError, TrajectoryLogError."""
    return stored_groups(path, read_stored(path), trajectory_class)


def stored_groups(
    path: Path, stored: Stored, trajectory_class: type[Trajectory] = Trajectory
) -> list[TrajectoryGroup]:
    """The groups of what `read_stored` found in a file. Raises: TrajectoryLogError."""
    try:
        return from_rows(stored.frame.iter_rows(named=True), stored.empty, trajectory_class)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        wanted = "" if trajectory_class is Trajectory else f" as {trajectory_class.__name__}"
        raise TrajectoryLogError(f"rows of {str(path)!r} cannot be read{wanted}: {error!r}") from error


def parquet_bytes(groups: Iterable[TrajectoryGroup], taken: Taken | None = None) -> int:
    """How large a file of these groups would be."""
    buffer = BytesIO()
    rows, empty = to_rows(groups)
    _write(Stored(frame=_frame(rows), empty=empty, taken=taken), buffer)
    return buffer.tell()


def rows_frame(groups: Iterable[TrajectoryGroup]) -> polars.DataFrame:
    """The rows as they would be stored. Groups without a trajectory have none."""
    return _frame(to_rows(groups)[0])


def read_stored(path: Path, columns: Collection[str] | None = None) -> Stored:
    """The rows as they are stored, and what is stored beside them. columns: only these, as far as the file
    has them.

    Raises: ConfigurationError when polars is not installed, TrajectoryLogError.
    """
    require_polars("Parquet files")
    import polars

    try:
        # The bytes, not the path: a path's `*` and `split=` would mean something to polars.
        data = path.read_bytes()
        there = polars.read_parquet_schema(BytesIO(data))
        wanted = [name for name in there if columns is None or name in columns]
        frame = polars.read_parquet(BytesIO(data), columns=wanted, hive_partitioning=False)
        # Other writers leave a struct's field out, or have another width of numbers.
        frame = frame.cast({name: kind for name, kind in schema().items() if name in wanted})
        metadata = polars.read_parquet_metadata(BytesIO(data))
    except (OSError, polars.exceptions.PolarsError) as error:
        raise TrajectoryLogError(f"trajectory log {str(path)!r} cannot be read: {error}") from error
    if missing := [name for name in ("group_index", "reward", "messages") if name not in there]:
        raise TrajectoryLogError(
            f"{str(path)!r} is no trajectory log: it has no column {missing[0]!r}, only {list(there)}"
        )
    taken = Taken(**from_text(metadata[TAKEN])) if TAKEN in metadata else None
    return Stored(frame=frame, empty=from_text(metadata.get(EMPTY_GROUPS, "[]")), taken=taken)


def _frame(rows: list[Row]) -> polars.DataFrame:
    import polars

    return polars.DataFrame(rows, schema=schema(), orient="row")


def _write(stored: Stored, file: IO[bytes]) -> None:
    metadata = {EMPTY_GROUPS: to_text(stored.empty)} if stored.empty else {}
    metadata |= {TAKEN: to_text(stored.taken)} if stored.taken else {}
    stored.frame.write_parquet(file, compression="zstd", metadata=metadata or None)


def _replace(path: Path, stored: Stored, check: Callable[[Path], None] | None = None) -> None:
    """Write beside and move into place. Call it under the folder's lock."""
    prefix = f".{path.name}."
    for torn in path.parent.glob(
        f"{escape(prefix)}*.part"
    ):  # left by a killed writer; the lock says it is dead
        torn.unlink(missing_ok=True)
    fresh = path.parent / f"{prefix}{secrets.token_hex(4)}.part"
    try:
        with fresh.open("xb") as file:
            _write(stored, file)
            file.flush()
            os.fsync(file.fileno())
        if check is not None:
            check(fresh)
        fresh.replace(path)
    except BaseException:
        with suppress(OSError):  # the first error is the one to tell
            fresh.unlink(missing_ok=True)
        raise
