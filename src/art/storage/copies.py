"""The newest of two places, and a checkpoint somewhere else on this machine."""

from __future__ import annotations

import shutil
from pathlib import Path

from art.errors import CheckpointMissingError, StepMissingError
from art.storage.pull import Wanted, choose_steps
from art.storage.steps import local_steps
from art.storage.store import Store
from art.wire.checkpoint import JOB_FILE


def newest_of(folder: Path, store: Store | None) -> int:
    """The highest step of a model's folder and of a store. Step 0 is untrained and counts as none.

    Raises CheckpointMissingError for none at all.
    """
    found = {0, *local_steps(folder)}
    if store is not None:
        try:
            found |= set(choose_steps(store, store.sizes(), Wanted(newest=True)))
        except CheckpointMissingError:
            found |= {0}
    if max(found) == 0:
        where = f"{folder}" if store is None else f"{folder} and {store.url}"
        raise CheckpointMissingError(
            f"No checkpoints found for model {folder.name}: only step 0 or none in {where}"
        )
    return max(found)


def local_checkpoint(folder: Path, step: int | None) -> Path:
    """The newest checkpoint here, or that of a step. Raises CheckpointMissingError, StepMissingError."""
    here = local_steps(folder)
    if not here:
        raise CheckpointMissingError(f"No checkpoints found for model {folder.name} in {folder}")
    if step is not None and step not in here:
        raise StepMissingError(f"No checkpoint of step {step} in {folder}. Available steps: {list(here)}")
    return here[max(here) if step is None else step]


def copy_checkpoint(checkpoint: Path, target: Path) -> Path:
    """A copy without the note of the job that made it. Files of the same names are replaced."""
    shutil.copytree(
        checkpoint,
        target,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns(JOB_FILE),
        copy_function=shutil.copyfile,  # contents alone: a step's tokenizer is read-only, this copy is not
    )
    return target
