"""Reads and annotates the record of a model's steps, from its files alone: no server has to run.

    for step in recorded_steps(model_folder):
        for one in read_rollouts(model_folder, step):
            one.rollout, one.fate, one.reward, one.advantage

The server writes the record (`art.wire.rollout_record`). What is learned later, such as a second judge's
opinion, is added as an annotation, which the reader folds in.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from art.errors import ConfigurationError
from art.tracking.folders import ModelPaths, lock_folder
from art.wire.rollout_record import RolloutRecord, fold_lines

_FIXED = frozenset({"group", "place", "fate", "samples"})
"""Facts of the step, which no annotation changes."""


def recorded_steps(model_folder: Path) -> list[int]:
    """Returns the steps that have a record of their rollouts, oldest first."""
    folder = ModelPaths(model_folder).steps
    found = folder.iterdir() if folder.is_dir() else ()
    steps = (int(path.name) for path in found if path.name.isdecimal())
    return sorted(step for step in steps if ModelPaths(model_folder).rollouts(step).is_file())


def read_rollouts(model_folder: Path, step: int) -> list[RolloutRecord]:
    """Returns the rollouts of the step that was made, group by group, annotations folded in.

    Empty where there is no record: the step is older than records are, or was trained on examples.
    """
    path = ModelPaths(model_folder).rollouts(step)
    try:
        with path.open("rb") as lines:
            return fold_lines(lines)
    except FileNotFoundError:
        return []


def annotate_rollout(model_folder: Path, step: int, rollout: str, fields: Mapping[str, Any]) -> None:
    """Adds a line that replaces these fields of a rollout for whoever reads the record from now on.

    fields: of `RolloutRecord`, as JSON values. Several programs may annotate at the same time.

    Raises ConfigurationError for a field that there is not, or that is a fact of the step, and for a rollout
    that the record does not have.
    """
    if wrong := sorted(set(fields) - (set(RolloutRecord.model_fields) - _FIXED - {"rollout"})):
        raise ConfigurationError(f"an annotation of a rollout cannot set {', '.join(wrong)}")
    known = {one.rollout: one for one in read_rollouts(model_folder, step)}
    if rollout not in known:
        raise ConfigurationError(f"step {step} of {model_folder} has no record of a rollout {rollout!r}")
    RolloutRecord.model_validate(known[rollout].model_dump() | dict(fields))
    path = ModelPaths(model_folder).rollouts(step)
    line = json.dumps({"rollout": rollout, **fields}, allow_nan=False).encode() + b"\n"
    with lock_folder(path.parent):
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        try:
            if not _ends_a_line(descriptor):
                line = b"\n" + line  # after the piece that a killed writer left
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def _ends_a_line(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
