"""The files of a committed step, for those who take it home: what its manifest names, and nothing else."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from art.errors import CheckpointError, NotFoundError
from art.server.checkpoints.checkpoints import Checkpoints
from art.wire.checkpoint import JOB_FILE, MANIFEST_FILE, Manifest, manifest_entry


def manifest_of(checkpoints: Checkpoints, step: int) -> Manifest:
    """Size and digest of each file. A plain adapter from elsewhere has no manifest: it is read for one.

    Raises NotFoundError for a step that is not there, CheckpointError for a manifest that cannot be read.
    """
    folder = _folder(checkpoints, step)
    path = folder / MANIFEST_FILE
    if not path.exists():
        files = [file for file in sorted(folder.iterdir()) if file.is_file() and not file.is_symlink()]
        return Manifest(files={file.name: manifest_entry(file) for file in files if file.name != JOB_FILE})
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise CheckpointError(f"the manifest of step {step} cannot be read: restore {path}") from error
    if MANIFEST_FILE not in manifest.files:
        manifest.files[MANIFEST_FILE] = manifest_entry(path)
    return manifest


def file_of(checkpoints: Checkpoints, step: int, name: str) -> Path:
    """Where one of these files lies. Raises NotFoundError for any other name."""
    known = manifest_of(checkpoints, step).files
    path = _folder(checkpoints, step) / name
    if name not in known or "/" in name or not path.is_file() or path.is_symlink():
        raise NotFoundError(
            f"step {step} has no file {name!r}; its files: {', '.join(known)}",
            status=404,
            code="file_not_found",
        )
    return path


def _folder(checkpoints: Checkpoints, step: int) -> Path:
    steps = checkpoints.steps()
    if step not in steps:
        raise NotFoundError(
            f"the model has no checkpoint of step {step}; its steps: {steps}", status=404, code="step_missing"
        )
    return checkpoints.path(step)
