"""Where pulled steps wait to become steps of a model, and how they do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from art.errors import StorageError
from art.process.file_lock import take_lock
from art.storage.steps import CHECKPOINTS, step_name

ARRIVING = ".arriving"
Commit = Callable[[Sequence[int], Sequence[int]], None]
"""`commit(steps, set_aside)`: make the folders in `.arriving` steps of the model; others give way first."""


def commit_here(folder: Path) -> Commit:
    """The commit of a folder that no server uses: plain moves. Raises StorageError when one does."""

    def commit(steps: Sequence[int], set_aside: Sequence[int]) -> None:
        with _no_server(folder.parents[2]):
            checkpoints = folder / CHECKPOINTS
            checkpoints.mkdir(parents=True, exist_ok=True)
            for step in set_aside:
                count = len(list(checkpoints.glob(f".{step_name(step)}.rejected-*")))
                (checkpoints / step_name(step)).rename(
                    checkpoints / f".{step_name(step)}.rejected-{count + 1}"
                )
            for step in steps:
                (folder / ARRIVING / step_name(step)).rename(checkpoints / step_name(step))

    return commit


@contextmanager
def only_pull(folder: Path) -> Iterator[Path]:
    """The folder that steps arrive in, for one pull at a time; removed when it is empty."""
    arriving = folder / ARRIVING
    arriving.mkdir(parents=True, exist_ok=True)
    descriptor = take_lock(arriving / ".lock")
    if descriptor is None:
        raise StorageError(f"another pull into {folder} is at work: wait for it")
    try:
        yield arriving
        shutil.rmtree(arriving)
    finally:
        os.close(descriptor)


@contextmanager
def _no_server(data_dir: Path) -> Iterator[None]:
    """Held while steps are moved in a data folder. Raises StorageError when a server uses it."""
    lock = data_dir / "server" / "lock"
    if not lock.exists():
        yield
        return
    descriptor = take_lock(lock)
    if descriptor is None:
        raise StorageError(f"a server uses {data_dir}: pull through its backend, or when it has ended")
    try:
        yield
    finally:
        os.close(descriptor)
