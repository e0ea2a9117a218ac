"""A checkpoint on disk: everything that the next step depends on, in JSON and safetensors.

    adapter_model.safetensors, adapter_config.json  the adapter, as PEFT writes it; or
    model.safetensors, config.json, ...             where all weights are trained, as transformers does
    tokenizer.json, tokenizer_config.json, ...      the base's tokenizer, where it has one
    optimizer.safetensors                           AdamW's moments, `<moment>.<parameter name>`
    critic.safetensors                              where there is one: the critic and its moments
    trainer_state.json                              step, RNG state, what is trained, optimizer numbers
    manifest.json                                   sha256 and size of each file; written last

A folder appears under its name complete and on disk, or not at all.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError
from safetensors import SafetensorError

from art.errors import CheckpointError, DiskError
from art.process.disk import disk_trouble
from art.process.durable import flush
from art.wire.checkpoint import MANIFEST_FILE, STATE_FILE, Manifest, ManifestEntry, manifest_entry
from art.wire.strict import Strict
from art.wire.training import LoraSpec, OptimizerSpec, TrainingKind

OPTIMIZER_FILE = "optimizer.safetensors"
CRITIC_FILE = "critic.safetensors"


M = TypeVar("M", bound=Strict)


class TrainerState(Strict):
    """`trainer_state.json`."""

    format: int = 1
    step: int
    base_model: str
    base_fingerprint: str
    lora: LoraSpec | None
    """None: all weights are trained."""
    optimizer: OptimizerSpec | None
    """The numbers of the last step; None before the first."""
    kind: TrainingKind = "rl"
    """Of the last step: what the moments were made by."""
    rng: dict[str, str]
    """Generator states by device, as hexadecimal bytes."""
    critic: bool = False
    """Whether the folder holds PPO's value head too."""


def write_checkpoint(
    path: Path,
    state: TrainerState,
    write_arrays: Callable[[Path], list[str]],
    place_shared: Callable[[Path], dict[str, ManifestEntry]] = lambda folder: {},
) -> list[str]:
    """Write a checkpoint folder that must not exist. `write_arrays` puts its files into a folder and names
    them; `place_shared` puts those that other checkpoints have too, on disk already, and says what they are.

    Nothing of it is left where that fails. Raises CheckpointError when `path` exists or cannot be written,
    DiskError when the disk is full.
    """
    if path.exists():
        raise CheckpointError(
            f"{str(path)!r} exists; a checkpoint is never overwritten. Choose another name."
        )
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        partial.mkdir(parents=True)
        files = [*write_arrays(partial), STATE_FILE]
        (partial / STATE_FILE).write_text(state.model_dump_json(indent=2))
        shared = place_shared(partial)
        manifest = Manifest(files={**{name: manifest_entry(partial / name) for name in files}, **shared})
        (partial / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=2))
        for name in (*files, MANIFEST_FILE, "."):
            flush(partial / name)
        partial.rename(path)
        flush(path.parent)
    except BaseException as error:
        trouble = disk_trouble(error, path)  # before the next line makes room
        shutil.rmtree(partial, ignore_errors=True)
        if trouble is not None:
            raise DiskError(f"the checkpoint could not be written: {trouble}") from error
        if isinstance(error, OSError | SafetensorError):
            raise CheckpointError(f"The checkpoint {str(path)!r} could not be written: {error}") from error
        raise
    return [*files, *shared, MANIFEST_FILE]


def read_checkpoint(path: Path, *, base_model: str, base_fingerprint: str) -> TrainerState:
    """Verify every file against the manifest and return the state.

    Raises CheckpointError naming the file that is missing, truncated or changed, or the base model it
    belongs to.
    """
    manifest = verify_files(path)
    _require(manifest, path, STATE_FILE, OPTIMIZER_FILE)
    state = _parse(TrainerState, path / STATE_FILE)
    if state.critic:
        _require(manifest, path, CRITIC_FILE)
    if state.base_fingerprint != base_fingerprint:
        raise CheckpointError(
            f"The checkpoint {str(path)!r} was trained on {state.base_model!r}, whose weights are not "
            f"those of the loaded {base_model!r}. Load it with its own base model."
        )
    return state


def verify_files(path: Path) -> Manifest:
    """Hold every file against the manifest. Raises CheckpointError naming the one that is not as it was."""
    manifest = _parse(Manifest, path / MANIFEST_FILE)
    for name, entry in manifest.files.items():
        file = path / name
        if Path(name).name != name or not file.is_file():
            raise CheckpointError(f"The checkpoint {str(path)!r} lacks its file {name!r}.")
        if file.stat().st_size != entry.size:
            raise CheckpointError(
                f"{name!r} in {str(path)!r} has {file.stat().st_size} bytes, not {entry.size}: "
                "it is truncated or changed."
            )
        if manifest_entry(file).sha256 != entry.sha256:
            raise CheckpointError(f"{name!r} in {str(path)!r} was changed: its sha256 is not the manifest's.")
    return manifest


def _require(manifest: Manifest, path: Path, *names: str) -> None:
    for name in names:
        if name not in manifest.files:
            raise CheckpointError(f"The manifest of {str(path)!r} does not list {name!r}.")


def _parse(kind: type[M], file: Path) -> M:
    try:
        return kind.model_validate_json(file.read_text())
    except OSError as error:
        raise CheckpointError(
            f"The checkpoint {str(file.parent)!r} lacks its file {file.name!r}: {error}"
        ) from error
    except (json.JSONDecodeError, ValidationError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file.name!r} in {str(file.parent)!r} is damaged: {error}") from error
