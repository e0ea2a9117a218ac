"""One model's checkpoints on disk: whole or absent, never half; what each holds, its files, and who uses it.

A step is written into a hidden folder beside its place, synced, and renamed: the rename is the commit.
`job.json` in the folder says which job made it and with what result, so that a restart never trains a
committed step again.

Two kinds of folders are checkpoints: our own (`trainer_state.json`, optimizer, RNG, manifest), and a plain
PEFT folder that another program wrote (`adapter_config.json` and `adapter_model.safetensors`). The second
kind resumes with a fresh optimizer. Its shape (`CheckpointShape`) is read from its small files. Checkpoints
that running jobs read beside the newest, references and teachers, are not deleted (`InUse`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import filecmp
import hashlib
import json
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from art.errors import CheckpointError, DiskError, NotFoundError, RequestError
from art.process.files import (
    close_to_others,
    disk_error,
    disk_trouble,
    find_named,
    flush,
    make_private_folder,
    write_flushed,
)
from art.process.foreign_files import parse_json, read_foreign
from art.wire.jobs import TrainResultInfo
from art.wire.models import (
    ADAPTER_CONFIG_FILE,
    ADAPTER_FILE,
    JOB_FILE,
    MANIFEST_FILE,
    STATE_FILE,
    STEP_FOLDER,
    Manifest,
    manifest_entry,
)
from art.wire.records import Strict, first_flaw
from art.wire.training import LoraSpec, TrainingKind

DEFAULT_LORA = LoraSpec()


@dataclass(frozen=True, kw_only=True)
class CheckpointShape:
    """The shape of the adapter in a checkpoint folder."""

    base_model: str
    lora: LoraSpec | None
    """None: all weights."""
    plain: bool
    """Whether it is a PEFT folder without our state."""


def read_shape(folder: Path) -> CheckpointShape:
    """Raises CheckpointError that names what the folder lacks."""
    if (folder / STATE_FILE).is_file():
        state = _json(folder / STATE_FILE)
        return _shape_of(folder / STATE_FILE, state.get("base_model"), state.get("lora"), plain=False)
    if not (folder / ADAPTER_FILE).is_file():
        raise CheckpointError(
            f"{folder} is no checkpoint: it has neither {STATE_FILE!r} nor {ADAPTER_FILE!r}. Restore or "
            "remove it."
        )
    config = _json(folder / ADAPTER_CONFIG_FILE)
    return _shape_of(
        folder / ADAPTER_CONFIG_FILE,
        config.get("base_model_name_or_path"),
        lora_of_peft(folder, config),
        plain=True,
    )


def lora_of_peft(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `LoraSpec` of a PEFT folder. Raises CheckpointError for another method than LoRA.

    Targets come from the names of the tensors: the configuration may spell them as a pattern, as Unsloth
    does.
    """
    if config.get("peft_type") != "LORA":
        raise CheckpointError(f"{folder} is a {config.get('peft_type')!r} adapter; only LoRA works")
    return {
        "r": config.get("r"),
        "alpha": config.get("lora_alpha"),
        "dropout": config.get("lora_dropout") or 0.0,
        "use_rslora": bool(config.get("use_rslora")),
        "targets": sorted({_module_of(name).rpartition(".")[2] for name in _tensors(folder)}),
    }


def _module_of(tensor: str) -> str:
    """Around experts PEFT has two wrappers: the inner one is their `base_layer`."""
    return tensor.rpartition(".lora_")[0].removesuffix(".base_layer")


def _tensors(folder: Path) -> list[str]:
    from safetensors import SafetensorError, safe_open

    path = folder / ADAPTER_FILE
    try:
        with safe_open(path, framework="numpy") as file:
            return [name for name in file.keys() if ".lora_" in name]
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}): it is cut or changed; restore it") from error


def shape_for(lora: LoraSpec | None, found: CheckpointShape, folder: Path) -> LoraSpec | None:
    """The adapter of a new model that begins with this checkpoint: what the request leaves at its default
    is taken from the checkpoint.

    Raises RequestError (409) for a setting that the request chose and the checkpoint contradicts.
    """
    if not leaves_open(found.lora, lora):
        raise _unfit_error(folder, lora, found.lora)
    return found.lora


def check_shape(lora: LoraSpec | None, found: CheckpointShape, folder: Path) -> None:
    """Refuses a checkpoint that a registered model cannot go on from. Raises RequestError (409)."""
    there = found.lora
    if there is not None and lora is not None and lora.targets == "all-linear":
        there = there.model_copy(update={"targets": lora.targets})  # spelled out: the trainer compares them
    if there != lora:
        raise _unfit_error(folder, lora, found.lora)


def leaves_open(there: LoraSpec | None, wanted: LoraSpec | None) -> bool:
    """Returns whether every setting of `wanted` is that of `there`, or the default, which chooses nothing.

    >>> leaves_open(LoraSpec(r=8, targets=["q_proj"]), LoraSpec())
    True
    >>> leaves_open(LoraSpec(r=8), LoraSpec(r=4))
    False
    """
    if there is None or wanted is None:
        return there is wanted
    for field in LoraSpec.model_fields:
        old, new, usual = (_sorted(getattr(spec, field)) for spec in (there, wanted, DEFAULT_LORA))
        if new not in (old, usual):
            return False
    return True


def _sorted(value: object) -> object:
    return sorted(set(value)) if isinstance(value, list) else value


def _unfit_error(folder: Path, wanted: LoraSpec | None, there: LoraSpec | None) -> RequestError:
    remedy = "register with full_finetuning" if there is None else "leave the settings that differ out"
    return RequestError(
        f"the checkpoint {folder} holds {lora_str(there)}, the model {lora_str(wanted)}: {remedy} when a new "
        "model is registered, or use another name",
        status=409,
        code="checkpoint_unfit",
        param="lora",
    )


def lora_str(lora: LoraSpec | None) -> str:
    return "all weights" if lora is None else f"the LoRA {lora.model_dump_json()}"


def _shape_of(path: Path, base_model: object, lora: object, *, plain: bool) -> CheckpointShape:
    try:
        spec = None if lora is None else LoraSpec.model_validate(lora)
    except ValidationError as error:
        raise CheckpointError(f"{path}: {first_flaw(error)}; restore the file") from error
    return CheckpointShape(base_model=str(base_model or ""), lora=spec, plain=plain)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(read_foreign(path))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); restore it") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds no JSON object; restore it")
    return found


class JobNote(Strict):
    """The job that made a checkpoint, and its result."""

    job_id: str
    result: TrainResultInfo
    reward: float | None = None
    """The mean of the scored rollouts; None for a step without rewards."""
    kind: TrainingKind | None = None
    """Whether it learned from rewards or from examples; None: an older release did not say."""


class Checkpoints:
    """The folder `checkpoints/` of one model. Its methods block for a few file operations each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def records(self) -> Path:
        """The folder of the record of each step, beside the checkpoints."""
        return self.folder.parent / "steps"

    def steps(self) -> list[int]:
        """Committed steps, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if STEP_FOLDER.fullmatch(path.name))

    def newest(self) -> int | None:
        return max(self.steps(), default=None)

    def path(self, step: int) -> Path:
        return self.folder / f"{step:04d}"

    def fresh_folder(self, step: int) -> Path:
        """Returns the folder to write a step to before it is committed. Remains of an earlier attempt are
        removed.
        """
        make_private_folder(self.folder)
        path = self.folder / f".{step:04d}.saving"
        for left in (path, *find_named(self.folder, f".{path.name}.", ".partial")):
            if left.exists():
                shutil.rmtree(left)
        return path

    def commit(self, step: int, note: JobNote | None = None) -> Path:
        """Make the written folder the step. One that cannot be is removed.

        Raises CheckpointError when the step exists already, DiskError.
        """
        written, path = self.folder / f".{step:04d}.saving", self.path(step)
        if path.exists():
            raise CheckpointError(f"checkpoint {path} exists already; a committed step is never overwritten")
        try:
            if note is not None:
                write_flushed(written / JOB_FILE, note.model_dump_json())
            flush(written)
            written.rename(path)
        except OSError as error:
            raise _given_up(written, error, f"step {step} could not be committed") from error
        flush(self.folder)
        return path

    def note(self, step: int) -> JobNote | None:
        """Returns the job that made a step; None for a step without a job. Raises CheckpointError if the note
        is unreadable.
        """
        path = self.path(step) / JOB_FILE
        if not path.exists():
            return None
        try:
            return JobNote.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise CheckpointError(
                f"{path} cannot be read ({error.error_count()} problems); restore it"
            ) from error

    def made_by(self, job_id: str) -> JobNote | None:
        """The note of the step that a job committed, or None. Newest steps are looked at first."""
        notes = (self.note(step) for step in reversed(self.steps()))
        return next((note for note in notes if note is not None and note.job_id == job_id), None)

    def reject(self, step: int) -> Path:
        """Set a committed step aside: it is kept for a look and is no step any more."""
        aside = self.folder / f".{step:04d}.rejected-{self.rejections(step) + 1}"
        self.path(step).rename(aside)
        flush(self.folder)
        return aside

    def rejections(self, step: int) -> int:
        """Returns how many checkpoints of this step were set aside."""
        return len(find_named(self.folder, f".{step:04d}.rejected-"))

    def delete(self, step: int) -> None:
        """Remove a step. It disappears in one move: a crash leaves no half of it."""
        doomed = self.folder / f".{step:04d}.deleting"
        self.path(step).rename(doomed)
        shutil.rmtree(doomed)

    def sweep(self) -> None:
        """Remove what a crash left half written or half deleted."""
        if self.folder.is_dir():
            for pattern in (".*.saving", ".*.partial", ".*.deleting"):
                for path in self.folder.glob(pattern):
                    shutil.rmtree(path)

    def link(self, source: Path, step: int) -> Path:
        """Write `step` with the files of a committed checkpoint elsewhere: hard links where the file system
        allows them. Which job made it stays behind.

        Raises CheckpointError when the source disappears meanwhile or is no plain folder of files.
        """
        target = self.fresh_folder(step)
        try:
            names = sorted(file.name for file in source.iterdir() if file.name != JOB_FILE)
            make_private_folder(target)
            for name in names:
                if (source / name).is_symlink() or not (source / name).is_file():
                    raise CheckpointError(f"{source / name} is no plain file; a checkpoint has nothing else")
                _link_or_copy(source / name, target / name)
        except OSError as error:
            if disk_trouble(error, target):
                raise _given_up(target, error, f"checkpoint {source} could not be copied") from error
            shutil.rmtree(target, ignore_errors=True)
            raise CheckpointError(
                f"checkpoint {source} could not be copied ({error}); was it deleted just now?"
            ) from error
        except CheckpointError:
            shutil.rmtree(target, ignore_errors=True)
            raise
        return target

    def copy_adapter(self, source: Path, step: int) -> Path:
        """Write `step` as a plain PEFT folder: a copy of the two files of an adapter elsewhere, which may
        change there. Raises CheckpointError.
        """
        target = self.fresh_folder(step)
        try:
            make_private_folder(target)
            for name in (ADAPTER_FILE, ADAPTER_CONFIG_FILE):
                _copy_synced(source / name, target / name)
        except OSError as error:
            if disk_trouble(error, target):
                raise _given_up(target, error, f"the LoRA {source} could not be copied") from error
            shutil.rmtree(target, ignore_errors=True)
            raise CheckpointError(f"the LoRA {source} could not be copied: {error}") from error
        return target

    def carry_forward(self, step: int) -> Path:
        """Write `step + 1` with the same weights: hard links to the files of `step`, and a state with the
        new number.

        Raises CheckpointError when the files of `step` are not what the trainer writes.
        """
        if not (self.path(step) / STATE_FILE).exists():  # a plain adapter: its number is its name
            return self.link(self.path(step), step + 1)
        source, target = self.path(step), self.fresh_folder(step + 1)
        try:
            return self._carry(source, target, step + 1)
        except BaseException as error:
            if isinstance(error, OSError):
                raise _given_up(target, error, f"step {step + 1} could not be written") from error
            shutil.rmtree(target, ignore_errors=True)
            raise

    @staticmethod
    def _carry(source: Path, target: Path, step: int) -> Path:
        make_private_folder(target)
        for file in source.iterdir():
            if file.name not in {JOB_FILE, STATE_FILE, MANIFEST_FILE}:
                os.link(file, target / file.name)
        try:
            state = _json(source / STATE_FILE)
            manifest = _json(source / MANIFEST_FILE)
            text = json.dumps({**state, "step": step}, indent=2)
            digest = hashlib.sha256(text.encode()).hexdigest()
            manifest["files"][STATE_FILE] = {"sha256": digest, "size": len(text.encode())}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"checkpoint {source} is incomplete: {error}; restore the folder"
            ) from error
        write_flushed(target / STATE_FILE, text)
        write_flushed(target / MANIFEST_FILE, json.dumps(manifest, indent=2))
        return target


def _given_up(folder: Path, error: OSError, what: str) -> DiskError:
    """Removes partial files, which may use the space that the disk lacks."""
    failure = disk_error(error, folder, what)
    shutil.rmtree(folder, ignore_errors=True)
    return failure


def same_files(one: Path, other: Path) -> bool:
    """Returns whether two checkpoints hold the same, whoever made them."""
    names = [{path.name for path in folder.iterdir()} - {JOB_FILE} for folder in (one, other)]
    pairs = [(one / name, other / name) for name in sorted(names[0])]
    return names[0] == names[1] and all(a.samefile(b) or filecmp.cmp(a, b, shallow=False) for a, b in pairs)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        _copy_synced(source, target)


def _copy_synced(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    close_to_others(target)
    flush(target)


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
    """Returns the path of one of these files. Raises NotFoundError for any other name."""
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


@contextlib.asynccontextmanager
async def lock_within(lock: asyncio.Lock, seconds: float, model: str) -> AsyncIterator[None]:
    """Holds the lock inside the block. Raises RequestError (409, `model_busy`) after waiting too long."""
    try:
        async with asyncio.timeout(seconds):
            await lock.acquire()
    except TimeoutError as error:
        raise RequestError(
            f"model {model} was in use for {seconds:g} s (registered, forked, pulled or trained): try again "
            "when that has ended",
            status=409,
            code="model_busy",
        ) from error
    try:
        yield
    finally:
        lock.release()
