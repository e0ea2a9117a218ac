"""`art migrate`: older trajectory logs (JSON lines) become Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from art.errors import install_command
from art.tracking.trajectory_log import has_polars
from art_extensions.compat.trajectory_migration import (
    MigrationResult,
    migrate_all_models,
    migrate_jsonl_to_parquet,
    migrate_model_dir,
    migrate_trajectories_dir,
)

PATHS = (
    "a folder .art, a project (has models/), a model (has trajectories/), its trajectories, or a .jsonl file"
)


def migrate(
    path: Annotated[
        Path, typer.Argument(help="A folder .art, a project, a model, its trajectories, or one .jsonl file.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Only measure, and write nothing.")
    ] = False,
    keep_jsonl: Annotated[bool, typer.Option("--keep-jsonl", help="Do not delete the originals.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print the outcome of each file.")] = False,
) -> None:
    """Convert older trajectory logs (JSON lines) to Parquet files, a fraction of their size.

    An original is deleted once its Parquet file was read back equal. Exit code 1 when a file could not be
    migrated.
    """
    raise typer.Exit(migrate_path(path, dry_run=dry_run, keep_jsonl=keep_jsonl, verbose=verbose))


def migrate_path(path: Path, *, dry_run: bool, keep_jsonl: bool, verbose: bool) -> int:
    """Migrate what is at `path` and print what was done. Returns 1 when something could not be migrated."""
    console, errors = Console(soft_wrap=True), Console(stderr=True, soft_wrap=True)
    if not has_polars():
        errors.print(
            f"Parquet files need 'polars', which is not installed. Run: {install_command('logs')}",
            markup=False,
        )
        return 1
    result = _migrate(path.resolve(), delete=not keep_jsonl, dry_run=dry_run)
    if result is None:
        errors.print(f"Could not determine path type of {str(path)!r}. Give {PATHS}.", markup=False)
        return 1
    if verbose:
        for note in result.notes:
            console.print(note, markup=False, highlight=False)
    console.print(_table(result, dry_run))
    if result.files_skipped and not verbose:
        console.print("--verbose says why files were skipped", highlight=False)
    for error in result.errors:
        errors.print(f"error: {error}", markup=False, highlight=False)
    return 1 if result.errors else 0


def _migrate(path: Path, *, delete: bool, dry_run: bool) -> MigrationResult | None:
    if path.is_file() and path.suffix == ".jsonl":
        return migrate_jsonl_to_parquet(path, delete, dry_run)
    if not path.is_dir():
        return None
    if (path / "trajectories").is_dir():
        return migrate_model_dir(path, delete, dry_run)
    if (path / "models").is_dir():
        return migrate_all_models(path.parent, path.name, delete, dry_run)
    if any(path.glob("*/models/")):
        return migrate_all_models(path, None, delete, dry_run)
    if path.name == "trajectories" or any(path.glob("*/*.jsonl")):
        return migrate_trajectories_dir(path, delete, dry_run)
    return None


def _table(result: MigrationResult, dry_run: bool) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("files that would be migrated" if dry_run else "files migrated", str(result.files_migrated))
    table.add_row("files skipped", str(result.files_skipped))
    table.add_row("errors", str(len(result.errors)))
    if result.files_migrated:
        table.add_row("size before", _megabytes(result.bytes_before))
        table.add_row("size after", _megabytes(result.bytes_after))
        table.add_row("saved", f"{_megabytes(result.space_saved)} ({result.compression_ratio:.1f}x smaller)")
    return table


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.2f} MB"
