"""One model's checkpoints on disk: whole or absent, never half.

A step is written into a hidden folder beside its place, synced, and renamed: the rename is the commit.
`job.json` in the folder says which job made it and with what result, so that a restart never trains a
committed step again.
"""

from __future__ import annotations

import errno
import filecmp
import hashlib
import json
import os
import re
import shutil
from pathlib import Path

from pydantic import ValidationError

from art.errors import CheckpointError, DiskError
from art.process.disk import disk_error, disk_trouble
from art.process.durable import flush, write_flushed
from art.wire.checkpoint import ADAPTER_CONFIG_FILE, ADAPTER_FILE, JOB_FILE, MANIFEST_FILE, STATE_FILE
from art.wire.jobs import TrainResultInfo
from art.wire.strict import Strict

_STEP = re.compile(r"\d{4,}")


class JobNote(Strict):
    """Which job made a checkpoint, and what it had to tell."""

    job_id: str
    result: TrainResultInfo


class Checkpoints:
    """The folder `checkpoints/` of one model. Its methods block for a few file operations each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def steps(self) -> list[int]:
        """Committed steps, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if _STEP.fullmatch(path.name))

    def newest(self) -> int | None:
        return max(self.steps(), default=None)

    def path(self, step: int) -> Path:
        return self.folder / f"{step:04d}"

    def fresh_folder(self, step: int) -> Path:
        """Where a step is to be written before it is committed. What an earlier attempt left there is
        removed.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f".{step:04d}.saving"
        for left in (path, *self.folder.glob(f".{path.name}.*.partial")):
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
        """Who made a step; None for a step that no job made. Raises CheckpointError when the note is
        unreadable.
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
        """How many checkpoints of this step were set aside."""
        return len(list(self.folder.glob(f".{step:04d}.rejected-*")))

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
            target.mkdir()
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
            target.mkdir()
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
        target.mkdir()
        for file in source.iterdir():
            if file.name not in {JOB_FILE, STATE_FILE, MANIFEST_FILE}:
                os.link(file, target / file.name)
        try:
            state = json.loads((source / STATE_FILE).read_bytes())
            manifest = json.loads((source / MANIFEST_FILE).read_bytes())
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
    """What is half written goes away: it may be what the disk lacks room for."""
    told = disk_error(error, folder, what)
    shutil.rmtree(folder, ignore_errors=True)
    return told


def same_files(one: Path, other: Path) -> bool:
    """Whether two checkpoints hold the same, whoever made them."""
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
    flush(target)
