"""A checkpoint on disk: everything that the next step depends on, in JSON and safetensors.

    adapter_model.safetensors, adapter_config.json  the adapter, as PEFT writes it; or
    model.safetensors, config.json, ...             where all weights are trained, as transformers does
    tokenizer.json, tokenizer_config.json, ...      the base's tokenizer, where it has one
    optimizer.safetensors                           its moments, `<moment>.<parameter name>`
    critic.safetensors                              where there is one: the critic and its moments
    average.safetensors                             where there is one: the LoRA that follows the adapter
    trainer_state.json                              step, RNG state, what is trained, optimizer numbers
    manifest.json                                   sha256 and size of each file; written last

A folder appears under its name complete and on disk, or not at all.

With the tokenizer the folder loads by itself: `AutoTokenizer`, PEFT, a push to the hub. A step's copy is a
hard link to the one in the newest step beside it, where that holds the same bytes: a hundred steps cost one
tokenizer. The base's own files are copied and never linked, so that nothing in a checkpoint leads back to a
package or to the hub's cache; and a copy is read-only, because whoever writes into one writes into every step
that shares it.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeVar

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file

from art.errors import CheckpointError, DiskError
from art.process.files import close_to_others, disk_trouble, flush, make_private_folder
from art.process.imports import import_lock
from art.wire.models import (
    MANIFEST_FILE,
    STATE_FILE,
    TOKENIZER_FILES,
    Manifest,
    ManifestEntry,
    manifest_entry,
)
from art.wire.records import GrownRecord, Strict
from art.wire.training import LoraSpec, OptimizerSpec, TrainingKind


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file. Raises CheckpointError when it is unreadable."""
    try:
        return load_file(str(path))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{str(path)!r} cannot be read: {error}") from error


def check_same(
    path: Path, expected: Mapping[str, tuple[int, ...]], found: Mapping[str, torch.Tensor]
) -> None:
    """Raise CheckpointError unless the tensors of a file are the expected ones, by name and shape."""
    missing, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    if missing or extra:
        raise CheckpointError(
            f"{str(path)!r} belongs to another model: {len(missing)} tensors are missing "
            f"(such as {missing[:1]}), {len(extra)} are unknown (such as {extra[:1]})."
        )
    for key, shape in expected.items():
        if tuple(found[key].shape) != shape:
            raise CheckpointError(f"{key!r} in {str(path)!r} is {tuple(found[key].shape)}, not {shape}.")


_READ_ONLY = ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)


class TokenizerFiles:
    """The tokenizer files of one base model: a folder or a hub name; None if its weights came from
    neither.
    """

    def __init__(self, source: str | None) -> None:
        self._source = source
        self._entries: dict[tuple[int, int, int, int], ManifestEntry] = {}
        """The entries by device, inode, time of change and size: each file, links included, is read once."""

    def place(self, folder: Path) -> dict[str, ManifestEntry]:
        """Put the files that the base has into a checkpoint that is being written beside the other steps.
        Names that are there already are left alone. What is placed is on disk.

        Raises OSError.
        """
        earlier = newest_step(folder.parent)
        return {
            name: self._place(file, folder / name, earlier)
            for name, file in find_tokenizer(self._source).items()
            if not (folder / name).exists()
        }

    def _place(self, file: Path, target: Path, earlier: Path | None) -> ManifestEntry:
        entry = self._entry(file)
        if earlier is not None and self._link(earlier / target.name, target, entry):
            return entry
        shutil.copyfile(file, target)
        target.chmod(stat.S_IRUSR)
        flush(target)
        return self._entry(target)

    def _link(self, candidate: Path, target: Path, entry: ManifestEntry) -> bool:
        """Returns whether the candidate holds these bytes and could be linked."""
        try:
            # No symbolic link, and no file of another program that may be linked to anything.
            found = candidate.lstat()
            if not stat.S_ISREG(found.st_mode) or found.st_mode & ~_READ_ONLY:
                return False
            if self._entry(candidate) != entry:
                return False
            os.link(candidate, target)
        except OSError:  # deleted meanwhile, or a file system without links: a copy does it
            return False
        return True

    def _entry(self, file: Path) -> ManifestEntry:
        found = file.stat()
        key = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
        if key not in self._entries:
            self._entries[key] = manifest_entry(file)
        return self._entries[key]


def find_tokenizer(source: str | None, *, cache: Path | None = None) -> dict[str, Path]:
    """Name -> file of a base's tokenizer, in its folder or in the hub's cache on this machine; no network.

    cache: the cache's folder, where not the usual one.
    """
    if source is None:
        return {}
    folder = Path(source).expanduser()
    if folder.is_dir():
        return {name: folder / name for name in TOKENIZER_FILES if (folder / name).is_file()}
    with import_lock:
        from transformers.utils.hub import cached_files

    try:
        found = cached_files(
            source,
            list(TOKENIZER_FILES),
            cache_dir=cache,
            local_files_only=True,
            _raise_exceptions_for_missing_entries=False,
        )
    except OSError:  # no hub name either: a folder that was removed after its weights were loaded
        return {}
    return {Path(file).name: Path(file) for file in found or ()}


def newest_step(folder: Path) -> Path | None:
    """The committed step with the largest number, if there is any."""
    steps = [name for name in os.listdir(folder) if name.isdecimal()]
    return folder / max(steps, key=int) if steps else None


OPTIMIZER_FILE = "optimizer.safetensors"
CRITIC_FILE = "critic.safetensors"
AVERAGE_FILE = "average.safetensors"


M = TypeVar("M", bound=Strict)


class EntropyState(Strict):
    """The place of an entropy bonus on its way to a target."""

    coefficient: float
    """The coefficient of the next step, if its entropy is to rise."""
    mean: float
    """The entropy of the last step, in nats."""


class SavedCritic(Strict):
    """A value model: the shape of its LoRA, whose weights are in the critic's file."""

    lora: LoraSpec
    first_step: int
    """The step that it was made in, from which its warm-up counts."""


class TrainerState(GrownRecord):
    """`trainer_state.json`."""

    LATER: ClassVar[frozenset[str]] = frozenset({"average", "entropy"})
    format: int = 1
    step: int
    base_model: str
    base_fingerprint: str
    lora: LoraSpec | None
    """None: all weights are trained."""
    optimizer: OptimizerSpec | None
    """The numbers of the last step; None before the first."""
    kind: TrainingKind = "rl"
    """The kind of the last step, which made the optimizer's moments."""
    rng: dict[str, str]
    """Generator states by device, as hexadecimal bytes."""
    critic: bool | SavedCritic = False
    """Whether the folder holds PPO's value head too; which one, where it is a value model's."""
    average: bool = False
    """Whether it holds a LoRA that follows the adapter, with the adapter's names: a reference."""
    entropy: EntropyState | None = None
    """The state after steps with a target entropy; None: there was none."""


def write_tensors(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Writes a safetensors file. Equal tensors give equal bytes."""
    here = {name: one.detach().cpu().contiguous() for name, one in tensors.items()}
    try:
        arrays = {name: one.numpy() for name, one in here.items()}
    except TypeError:  # bfloat16, which NumPy has not
        save_file(here, str(path), metadata=metadata)
    else:  # the same file; for hundreds of small tensors in a fifth of the time
        save_arrays(arrays, str(path), metadata=metadata)


def begin_checkpoint(
    path: Path,
    state: TrainerState,
    write_arrays: Callable[[Path], list[str]],
    place_shared: Callable[[Path], dict[str, ManifestEntry]] = lambda folder: {},
) -> Callable[[], list[str]]:
    """Writes down a checkpoint. What is returned makes it the folder `path`, which must not exist, in any
    thread, and returns its files. `write_arrays` puts files into a folder and names them; `place_shared` puts
    those that other checkpoints have too, on disk already, and says what they are.

    Nothing of it is left where that fails. Both raise CheckpointError when `path` exists or cannot be
    written, DiskError when the disk is full.
    """
    if path.exists():
        raise CheckpointError(
            f"{str(path)!r} exists; a checkpoint is never overwritten. Choose another name."
        )
    folder = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    with _whole_or_nothing(folder, path):
        make_private_folder(folder)
        files = [*write_arrays(folder), STATE_FILE]
        (folder / STATE_FILE).write_text(state.model_dump_json(indent=2))
    return partial(_complete, folder, path, files, place_shared)


def _complete(
    folder: Path, path: Path, files: list[str], place_shared: Callable[[Path], dict[str, ManifestEntry]]
) -> list[str]:
    with _whole_or_nothing(folder, path):
        shared = place_shared(folder)
        manifest = Manifest(files={**{name: manifest_entry(folder / name) for name in files}, **shared})
        (folder / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=2))
        for name in (*files, MANIFEST_FILE):
            close_to_others(folder / name)
        for name in (*files, MANIFEST_FILE, "."):
            flush(folder / name)
        folder.rename(path)
        flush(path.parent)
    return [*files, *shared, MANIFEST_FILE]


@contextmanager
def _whole_or_nothing(folder: Path, path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        trouble = disk_trouble(error, path)  # before the next line makes room
        shutil.rmtree(folder, ignore_errors=True)
        if trouble is not None:
            raise DiskError(f"the checkpoint could not be written: {trouble}") from error
        if isinstance(error, OSError | SafetensorError):
            raise CheckpointError(f"The checkpoint {str(path)!r} could not be written: {error}") from error
        raise


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
    if state.average:
        _require(manifest, path, AVERAGE_FILE)
    if state.base_fingerprint != base_fingerprint:
        raise CheckpointError(
            f"The checkpoint {str(path)!r} was trained on {state.base_model!r}, whose weights are not "
            f"those of the loaded {base_model!r}. Load it with its own base model."
        )
    return state


def verify_files(path: Path) -> Manifest:
    """Checks every file against the manifest. Raises CheckpointError naming the one that differs."""
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


def content_of(path: Path) -> dict[str, ManifestEntry]:
    """The files of a checkpoint beside the trainer's state, by its manifest. Raises CheckpointError."""
    files = _parse(Manifest, path / MANIFEST_FILE).files
    return {name: entry for name, entry in files.items() if name != STATE_FILE}


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
