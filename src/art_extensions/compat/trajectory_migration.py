"""Older trajectory logs (JSON lines) become Parquet files, and older checkpoint folders move to their place.

    {model}/trajectories/{split}/0003.jsonl  ->  {model}/trajectories/{split}/0003.parquet
    {model}/0003/                            ->  {model}/checkpoints/0003/

A file counts as migrated when its Parquet file was read back equal to it; only then is the original deleted.
What cannot be migrated is collected in the result, never raised. Lines that were logged because polars was
not installed are added to a Parquet file that is there already; lines of an older program beside one are what
it was made from, and are skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from glob import escape
from pathlib import Path
from typing import Literal

from art.errors import ARTError, TrajectoryLogError, require_extra
from art.process.files import make_private_folder
from art.tracking.folders import ModelPaths, lock_folder
from art.tracking.trajectory_lines import exact_line, read_lines
from art.tracking.trajectory_log import (
    add_groups,
    has_polars,
    parquet_bytes,
    read_parquet,
    read_stored,
    stored_groups,
)
from art.trajectories import TrajectoryGroup

_log = logging.getLogger(__name__)

Original = Literal["delete", "rename", "keep"]
ProgressCallback = Callable[[str], object]
UNREADABLE = frozenset({".yaml", ".yml"})
RENAMED = ".migrated"


@dataclass
class MigrationResult:
    """The result of a migration. Sizes in bytes; `notes` has a line for each file without an error. Results
    can be added with `+`.
    """

    files_migrated: int = 0
    files_skipped: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def compression_ratio(self) -> float:
        """Returns how many times smaller the files became; 0 when nothing was migrated."""
        return self.bytes_before / self.bytes_after if self.bytes_after else 0.0

    @property
    def space_saved(self) -> int:
        """Bytes."""
        return self.bytes_before - self.bytes_after

    def __add__(self, other: MigrationResult) -> MigrationResult:
        return MigrationResult(
            self.files_migrated + other.files_migrated,
            self.files_skipped + other.files_skipped,
            self.bytes_before + other.bytes_before,
            self.bytes_after + other.bytes_after,
            self.errors + other.errors,
            self.notes + other.notes,
        )


def migrate_jsonl_to_parquet(
    jsonl_path: str | Path, delete_original: bool = True, dry_run: bool = False
) -> MigrationResult:
    """Migrate one file. dry_run: read and measure it, write nothing."""
    return _migrate_file(Path(jsonl_path), "delete" if delete_original else "keep", dry_run)


def migrate_trajectories_dir(
    trajectories_dir: str | Path,
    delete_originals: bool = True,
    dry_run: bool = False,
    progress_callback: ProgressCallback | None = None,
) -> MigrationResult:
    """Migrate every split of a `trajectories` folder. progress_callback: is given the path of each file, as a
    string, before it is read.
    """
    original: Original = "delete" if delete_originals else "keep"
    return _migrate_folder(Path(trajectories_dir), original, dry_run, progress_callback)


def migrate_model_dir(
    model_dir: str | Path,
    delete_originals: bool = True,
    dry_run: bool = False,
    progress_callback: ProgressCallback | None = None,
) -> MigrationResult:
    """Migrate the `trajectories` folder of a model, if it has one; see `migrate_trajectories_dir`."""
    folder = ModelPaths(Path(model_dir)).trajectories
    if not folder.is_dir():
        return MigrationResult()
    return migrate_trajectories_dir(folder, delete_originals, dry_run, progress_callback)


def migrate_all_models(
    art_path: str | Path,
    project_name: str | None = None,
    delete_originals: bool = True,
    dry_run: bool = False,
    progress_callback: ProgressCallback | None = None,
) -> MigrationResult:
    """Migrate all models below an `.art` folder, or those of one project; see `migrate_trajectories_dir`."""
    result = MigrationResult()
    projects = sorted(Path(art_path).iterdir()) if project_name is None else [Path(art_path) / project_name]
    for folder in projects:
        for model_dir in sorted((folder / "models").glob("*/")):
            result += migrate_model_dir(model_dir, delete_originals, dry_run, progress_callback)
    return result


def auto_migrate_on_register(model_dir: str | Path) -> MigrationResult:
    """Migrates logs and checkpoints of older layouts when a local backend registers a model.

    Originals stay, renamed to `0003.jsonl.migrated`. Where polars is not installed, logs stay JSON lines.
    """
    model_dir = Path(model_dir)
    migrate_checkpoints_to_new_structure(model_dir)
    folder = ModelPaths(model_dir).trajectories
    if not (folder.is_dir() and has_polars()):
        return MigrationResult()
    result = _migrate_folder(folder, "rename", dry_run=False, progress_callback=None)
    if result.files_migrated:
        _log.info(
            "%d older trajectory logs of %s are Parquet files now; the originals end in %s",
            result.files_migrated,
            model_dir,
            RENAMED,
        )
    for problem in result.errors:
        _log.warning("an older trajectory log was not migrated: %s", problem)
    return result


def migrate_checkpoints_to_new_structure(output_dir: str | Path) -> list[int]:
    """Move checkpoints that lie directly below a model's folder into `checkpoints/`; returns their steps.

    One whose step is already there stays where it is, with a warning.
    """
    output_dir = Path(output_dir)
    moved = []
    for old in sorted(output_dir.glob("[0-9]*/")):
        if not old.name.isdecimal():
            continue
        new = ModelPaths(output_dir).checkpoints / f"{int(old.name):04d}"
        if new.exists():
            _log.warning("checkpoint %s stays where it is: %s exists", old, new)
            continue
        make_private_folder(new.parent)
        old.rename(new)
        moved.append(int(old.name))
    return moved


def _migrate_folder(
    folder: Path, original: Original, dry_run: bool, progress_callback: ProgressCallback | None
) -> MigrationResult:
    result = MigrationResult()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in UNREADABLE | {".jsonl"}:
            if progress_callback is not None:
                progress_callback(str(path))
            result += _migrate_file(path, original, dry_run)
    return result


def _migrate_file(path: Path, original: Original, dry_run: bool) -> MigrationResult:
    target = path.with_suffix(".parquet")
    if path.suffix != ".jsonl":
        why = "YAML logs are not read: an older release converts them to .jsonl"
        return _skipped(path, why if path.suffix in UNREADABLE else "not a .jsonl file")
    try:
        require_extra("logs", "a Parquet file")
        if dry_run:
            return _convert(path, target, None)
        if not path.is_file():
            raise FileNotFoundError(f"no such file: {str(path)!r}")
        with lock_folder(path.parent):  # whoever adds a line now would lose it
            return _convert(path, target, original)
    except (OSError, ValueError, ARTError) as error:
        if target.exists() and not path.exists():
            return _skipped(path, "another process migrated it")
        return MigrationResult(errors=[f"{path}: {error}"])


def _convert(path: Path, target: Path, original: Original | None) -> MigrationResult:
    """original: what becomes of the file; None to measure only, and to write nothing."""
    known = read_stored(target) if target.exists() else None
    lines = read_lines(path, own_lines_only=known is not None, after=known.covered_lines if known else None)
    if known is not None and not lines.groups:
        return _skipped(path, f"{target.name} is already there")
    if lines.torn and not lines.groups:
        raise TrajectoryLogError(
            f"no line of it is a group of trajectories, and {lines.torn} bytes are no JSON"
        )
    before, size_before = path.stat().st_size, target.stat().st_size if known else 0
    if original is None:
        size = parquet_bytes(lines.groups, lines.complete)
    else:
        expected = (stored_groups(target, known) if known else []) + lines.groups
        add_groups(
            target, lines.groups, covered_lines=lines.complete, check=partial(_check, expected=expected)
        )
        size = target.stat().st_size - size_before
        # What a killed process left unfinished is in no Parquet file: it is not deleted.
        _put_away(path, "rename" if lines.torn and original == "delete" else original)
    note = f"{path}: {before} bytes, as {target.name} {size}"
    if lines.torn:
        note += f", without {lines.torn} bytes of an unfinished last line"
    return MigrationResult(files_migrated=1, bytes_before=before, bytes_after=size, notes=[note])


def _check(written: Path, expected: list[TrajectoryGroup]) -> None:
    # As text: values that are not a number equal nothing, not even themselves.
    if [exact_line(group) for group in read_parquet(written)] != [exact_line(group) for group in expected]:
        raise ARTError("the Parquet file was not read back equal; the original stays, please report this")


def _put_away(path: Path, original: Original) -> None:
    if original == "delete":
        path.unlink()
    elif original == "rename":
        count = len(list(path.parent.glob(f"{escape(path.name)}{RENAMED}*")))
        path.rename(path.with_name(path.name + RENAMED + (f"-{count + 1}" if count else "")))


def _skipped(path: Path, why: str) -> MigrationResult:
    return MigrationResult(files_skipped=1, notes=[f"{path}: {why}"])
