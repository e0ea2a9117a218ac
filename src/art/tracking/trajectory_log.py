"""The log of trajectories: one Parquet file a step, written whole, appended to, read back equal.

    append_groups(folder / "trajectories" / "train" / "0003.parquet", groups)
    groups == read_parquet(folder / "trajectories" / "train" / "0003.parquet")

A file is complete at any moment: it is written beside and moved into place. `LoggedSteps` says which steps a
model has logged, and reads them a few groups at a time, or one group alone.

Where polars is not installed (180 MB that a client may do without) a step is logged as JSON lines instead;
a step may have both.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from art.errors import (
    TrajectoryLogError,
    UnreadableFileError,
    install_command,
    is_installed,
    require_extra,
)
from art.process.files import disk_error, find_named, private_opener
from art.process.foreign_files import read_foreign
from art.tracking.folders import LOG_SUFFIXES, lock_folder
from art.tracking.trajectory_lines import TakenLines, append_lines, read_lines
from art.tracking.trajectory_rows import (
    EMPTY_GROUPS,
    TAKEN_LINES,
    TrajectoryRow,
    from_text,
    group_to_rows,
    groups_from_rows,
    to_text,
    trajectory_schema,
)
from art.trajectories import Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    import polars


ROWS_TOGETHER = 512
"""Rows that are decoded together: one group of a large step is read without the others."""
GROUPS_TOGETHER = 32
"""Groups that are in memory at a time while a log is streamed."""


def has_polars() -> bool:
    """Returns whether it is installed. It is not loaded for the answer."""
    return is_installed("polars")


@dataclass(frozen=True, kw_only=True)
class StoredLog:
    """The content of a file. empty: records of groups that have no row. taken: of the JSON lines
    beside it.
    """

    frame: polars.DataFrame
    empty: list[TrajectoryRow] = field(default_factory=list)
    covered_lines: TakenLines | None = None


def write_trajectory_groups_parquet(groups: Iterable[TrajectoryGroup], path: str | Path) -> None:
    """Write groups to a file of their own, in place of what is there. Compressed with zstd.

    Raises: ConfigurationError when polars is not installed, DeadlineError when another process holds the
    folder's lock for too long.
    """
    require_extra("logs", "a Parquet file")
    path = Path(path)
    rows, empty = group_to_rows(groups)
    with lock_folder(path.parent):
        _replace(path, StoredLog(frame=_frame(rows), empty=empty))


def append_groups(path: str | Path, groups: Iterable[TrajectoryGroup]) -> None:
    """Add groups to a file, which is made if it is not there. Several processes may do so at once.

    Raises: ConfigurationError when polars is not installed, TrajectoryLogError when the file cannot be read
    (it is left as it is), DeadlineError when another process holds the folder's lock for too long.
    """
    require_extra("logs", "a Parquet file")
    path = Path(path)
    with lock_folder(path.parent):
        add_groups(path, groups)


def add_groups(
    path: Path,
    groups: Iterable[TrajectoryGroup],
    *,
    covered_lines: TakenLines | None = None,
    check: Callable[[Path], None] | None = None,
) -> None:
    """`append_groups` for a caller who holds the folder's lock.

    covered_lines: the JSON lines that the groups come from; check: is given the new file before it takes its
    place, and raises if it may not.
    """
    known = read_stored(path) if path.exists() else StoredLog(frame=_frame([]))
    indexes = [row["group_index"] for row in known.empty] + known.frame["group_index"].drop_nulls().to_list()
    rows, empty = group_to_rows(groups, first_index=max(indexes, default=-1) + 1)
    import polars

    joined = polars.concat([known.frame, _frame(rows)], how="diagonal_relaxed")
    _replace(
        path,
        StoredLog(
            frame=joined, empty=known.empty + empty, covered_lines=covered_lines or known.covered_lines
        ),
        check,
    )


def read_parquet(path: Path, trajectory_class: type[Trajectory] = Trajectory) -> list[TrajectoryGroup]:
    """The groups of a Parquet file alone. Raises: ConfigurationError, TrajectoryLogError."""
    return stored_groups(path, read_stored(path), trajectory_class)


def stored_groups(
    path: Path, stored: StoredLog, trajectory_class: type[Trajectory] = Trajectory
) -> list[TrajectoryGroup]:
    """The groups of what `read_stored` found in a file. Raises: TrajectoryLogError."""
    try:
        return groups_from_rows(stored.frame.iter_rows(named=True), stored.empty, trajectory_class)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        wanted = "" if trajectory_class is Trajectory else f" as {trajectory_class.__name__}"
        raise TrajectoryLogError(f"rows of {str(path)!r} cannot be read{wanted}: {error!r}") from error


def parquet_bytes(groups: Iterable[TrajectoryGroup], covered_lines: TakenLines | None = None) -> int:
    """Returns how large a file of these groups would be."""
    buffer = BytesIO()
    rows, empty = group_to_rows(groups)
    _write(StoredLog(frame=_frame(rows), empty=empty, covered_lines=covered_lines), buffer)
    return buffer.tell()


def rows_frame(groups: Iterable[TrajectoryGroup]) -> polars.DataFrame:
    """The rows as they would be stored. Groups without a trajectory have none."""
    return _frame(group_to_rows(groups)[0])


def read_stored(
    path: Path,
    columns: Collection[str] | None = None,
    *,
    indexes: Collection[int] | None = None,
    data: bytes | None = None,
) -> StoredLog:
    """The rows as they are stored, and what is stored beside them. columns: only these, as far as the file
    has them. indexes: only rows of these groups; those of other row groups of the file are not decoded.
    data: the file's bytes, for whoever reads several parts of it.

    Raises: ConfigurationError when polars is not installed, TrajectoryLogError.
    """
    require_extra("logs", "a Parquet file")
    import polars
    from polars.exceptions import PanicException, PolarsError

    try:
        # The bytes, not the path: a path's `*` and `split=` would mean something to polars.
        data = read_foreign(path) if data is None else data
        there = polars.read_parquet_schema(BytesIO(data))
        wanted = [name for name in there if columns is None or name in columns]
        rows = polars.scan_parquet(BytesIO(data), hive_partitioning=False).select(wanted)
        if indexes is not None:
            rows = rows.filter(polars.col("group_index").is_in(list(indexes)))
        frame = rows.collect()
        # Other writers leave a struct's field out, or have another width of numbers.
        schema: dict[Any, Any] = trajectory_schema()
        other = {name: kind for name, kind in schema.items() if frame.schema.get(name, kind) != kind}
        frame = frame.cast(other) if other else frame  # a cast costs as much as the reading
        metadata = polars.read_parquet_metadata(BytesIO(data))
    except (OSError, UnreadableFileError, PolarsError, PanicException) as error:
        raise TrajectoryLogError(f"trajectory log {str(path)!r} cannot be read: {error}") from error
    if missing := [name for name in ("group_index", "reward", "messages") if name not in there]:
        raise TrajectoryLogError(
            f"{str(path)!r} is no trajectory log: it has no column {missing[0]!r}, only {list(there)}"
        )
    taken = TakenLines(**from_text(metadata[TAKEN_LINES])) if TAKEN_LINES in metadata else None
    return StoredLog(frame=frame, empty=from_text(metadata.get(EMPTY_GROUPS, "[]")), covered_lines=taken)


def _frame(rows: list[TrajectoryRow]) -> polars.DataFrame:
    import polars

    return polars.DataFrame(rows, schema=trajectory_schema(), orient="row")


def _write(stored: StoredLog, file: IO[bytes]) -> None:
    metadata = {EMPTY_GROUPS: to_text(stored.empty)} if stored.empty else {}
    metadata |= {TAKEN_LINES: to_text(stored.covered_lines)} if stored.covered_lines else {}
    rows = stored.frame.sort("group_index", maintain_order=True)  # a group's rows lie together
    rows.write_parquet(file, compression="zstd", metadata=metadata or None, row_group_size=ROWS_TOGETHER)


def _replace(path: Path, stored: StoredLog, check: Callable[[Path], None] | None = None) -> None:
    """Write beside and move into place. Call it under the folder's lock. Raises DiskError."""
    prefix = f".{path.name}."
    for torn in find_named(path.parent, prefix, ".part"):  # of a killed writer: the lock says it is dead
        torn.unlink(missing_ok=True)
    fresh = path.parent / f"{prefix}{secrets.token_hex(4)}.part"
    try:
        # Not to the file itself: polars makes an error of its own of what the disk says.
        content = BytesIO()
        _write(stored, content)
        with open(fresh, "xb", opener=private_opener) as file:
            file.write(content.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        if check is not None:
            check(fresh)
        fresh.replace(path)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise disk_error(error, path, "the trajectories cannot be logged") from error
    except BaseException:
        with suppress(OSError):  # the first error is the one to tell
            fresh.unlink(missing_ok=True)
        raise


_log = logging.getLogger(__name__)


def log_groups(split_folder: Path, step: int, groups: Iterable[TrajectoryGroup]) -> None:
    """Add groups to the file of a step, in a split's folder: `0003.parquet`, or `0003.jsonl` without polars.

    Raises: TrajectoryLogError when the Parquet file cannot be read, DiskError, OSError, DeadlineError.
    """
    if has_polars():
        append_groups(split_folder / f"{step:04d}.parquet", groups)
    else:
        _warn_about_lines()
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
        return _step_lines(path, trajectory_class)
    beside = path.with_suffix(".jsonl")
    if not beside.exists():
        return read_parquet(path, trajectory_class)
    if not path.exists():
        return _step_lines(beside, trajectory_class)
    stored = read_stored(path)
    groups = stored_groups(path, stored, trajectory_class)
    return groups + _step_lines(beside, trajectory_class, stored=stored)


@dataclass(frozen=True)
class LoggedSteps:
    """The log of one model: which steps of which splits it has, and their groups."""

    folder: Path
    """`ModelPaths.trajectories`: a folder for each split."""

    def by_split(self) -> dict[str, list[int]]:
        """Returns the steps that are logged, oldest first, by split."""
        found: dict[str, set[int]] = {}
        for path in self.folder.glob("*/*"):
            if path.suffix in LOG_SUFFIXES and path.stem.isdecimal():
                found.setdefault(path.parent.name, set()).add(int(path.stem))
        return {split: sorted(steps) for split, steps in sorted(found.items())}

    def path(self, split: str, step: int) -> Path:
        """Returns the path that `read_trajectory_groups` takes, whether there is a log or not."""
        return self.folder / split / f"{step:04d}.parquet"

    def files(self, split: str, step: int) -> list[Path]:
        """Returns the files of a step that are there: Parquet first, then JSON lines."""
        path = self.path(split, step)
        return [file for file in (path, path.with_suffix(".jsonl")) if file.exists()]

    def groups(
        self, split: str, step: int, trajectory_class: type[Trajectory] = Trajectory
    ) -> Iterator[TrajectoryGroup]:
        """Yields the groups of a step; only a few are in memory. Raises as `read_trajectory_groups`."""
        path = self.path(split, step)
        data, indexes, empty = _group_indexes(path)
        for start in range(0, len(indexes), GROUPS_TOGETHER):
            some = indexes[start : start + GROUPS_TOGETHER]
            yield from _chosen_groups(path, data, some, empty, trajectory_class)
        if (lines := path.with_suffix(".jsonl")).exists() or not path.exists():
            yield from lines_of_step(lines, trajectory_class)

    def group(
        self, split: str, step: int, place: int, trajectory_class: type[Trajectory] = Trajectory
    ) -> TrajectoryGroup | None:
        """Returns one group by its place in the step, from 0; None where there are fewer. The others are not
        read. Raises as `read_trajectory_groups`.
        """
        path = self.path(split, step)
        data, indexes, empty = _group_indexes(path)
        if place < len(indexes):
            (found,) = _chosen_groups(path, data, indexes[place : place + 1], empty, trajectory_class)
            return found
        lines = path.with_suffix(".jsonl")
        rest = lines_of_step(lines, trajectory_class) if lines.exists() or not path.exists() else []
        return rest[place - len(indexes)] if place - len(indexes) < len(rest) else None


def _group_indexes(path: Path) -> tuple[bytes, list[int], list[TrajectoryRow]]:
    """The bytes of a Parquet file, the indexes of its groups in their order, and the groups that have no
    row. What is read of it later is of these bytes: a writer may replace the file meanwhile.
    """
    if not path.exists():
        return b"", [], []
    try:
        data = read_foreign(path)
    except (OSError, UnreadableFileError) as error:
        raise TrajectoryLogError(f"trajectory log {str(path)!r} cannot be read: {error}") from error
    stored = read_stored(path, ("group_index",), data=data)
    of_rows = stored.frame["group_index"].drop_nulls().unique().to_list()
    return data, sorted({*of_rows, *(row["group_index"] for row in stored.empty)}), stored.empty


def _chosen_groups(
    path: Path,
    data: bytes,
    indexes: list[int],
    empty: list[TrajectoryRow],
    trajectory_class: type[Trajectory],
) -> list[TrajectoryGroup]:
    stored = read_stored(path, indexes=indexes, data=data)
    without_rows = [row for row in empty if row["group_index"] in indexes]
    return stored_groups(path, StoredLog(frame=stored.frame, empty=without_rows), trajectory_class)


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
    return _step_lines(path, trajectory_class, stored=stored)


def _step_lines(
    path: Path, trajectory_class: type[Trajectory], *, stored: StoredLog | None = None
) -> list[TrajectoryGroup]:
    after = stored.covered_lines if stored else None
    try:
        lines = read_lines(path, trajectory_class, own_lines_only=stored is not None, after=after)
    except (OSError, TrajectoryLogError) as error:
        raise TrajectoryLogError(f"trajectory log {str(path)!r} cannot be read: {error}") from error
    if lines.torn:
        _log.warning("%d bytes at the end of %s are an unfinished line: left out", lines.torn, path)
    return lines.groups


@cache
def _warn_about_lines() -> None:
    """Warns once per process."""
    _log.warning(
        "polars is not installed, so trajectories are logged as JSON lines instead of Parquet files. Nothing "
        "is lost: for Parquet, %s; `art migrate PATH` then converts what is there",
        install_command("logs"),
    )
