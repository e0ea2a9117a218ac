"""A model from a bucket into its folder here.

Steps are fetched into the hidden folder `.arriving`, held against their manifests, and committed together.
What an interrupted pull has fetched is used by the next one.
"""

from __future__ import annotations

import logging
import os
import shutil
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from art.client.storage.bucket_store import PullReport, Wanted
from art.errors import CheckpointMissingError, StepMissingError, StorageError
from art.process.files import close_to_others, flush, make_private_folder, take_lock, write_whole
from art.process.foreign_files import parse_json
from art.wire.models import ADAPTER_FILE, JOB_FILE, MANIFEST_FILE, Manifest, manifest_entry
from art_extensions.buckets.bucket_push import (
    CHECKPOINTS,
    complete_steps,
    entry_of,
    excluded,
    is_side_file,
    keeps_more,
    local_manifest,
    local_side_files,
    local_steps,
    not_written_meanwhile,
    remote_files,
    remote_index,
    step_name,
)
from art_extensions.buckets.store import OnProgress, Store

ARRIVING = ".arriving"
Commit = Callable[[Sequence[int], Sequence[int]], None]
"""`commit(steps, set_aside)`: make the folders in `.arriving` steps of the model; others give way first."""


def commit_here(folder: Path) -> Commit:
    """The commit of a folder that no server uses: plain moves. Raises StorageError when one does."""

    def commit(steps: Sequence[int], set_aside: Sequence[int]) -> None:
        with _no_server(folder.parents[2]):
            checkpoints = folder / CHECKPOINTS
            make_private_folder(checkpoints)
            for step in set_aside:
                count = len(list(checkpoints.glob(f".{step_name(step)}.rejected-*")))
                (checkpoints / step_name(step)).rename(
                    checkpoints / f".{step_name(step)}.rejected-{count + 1}"
                )
            for step in steps:
                (folder / ARRIVING / step_name(step)).rename(checkpoints / step_name(step))

    return commit


@contextmanager
def pull_lock(folder: Path) -> Iterator[Path]:
    """The folder that steps arrive in, for one pull at a time; removed when it is empty."""
    arriving = folder / ARRIVING
    make_private_folder(arriving)
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


def fetch_step(
    store: Store, step: int, manifest: Manifest | None, there: Mapping[str, int], target: Path
) -> None:
    """One step, whole and verified, or an error. What lies in `target` already is used where it fits."""
    make_private_folder(target)
    names = sorted(there if manifest is None else manifest.files)
    for stray in target.iterdir():
        if stray.name not in names:
            stray.unlink()
    prefix = f"{CHECKPOINTS}/{step_name(step)}"

    def fetch(name: str) -> None:
        file, entry = target / name, None if manifest is None else manifest.files[name]
        if entry is not None and file.is_file() and manifest_entry(file) == entry:
            return
        try:
            store.download(f"{prefix}/{name}", file)
        except FileNotFoundError as error:
            raise StorageError(f"{prefix}/{name} in {store.url!r} is gone: pull again") from error
        close_to_others(file)
        flush(file)
        if entry is not None and manifest_entry(file) != entry:
            found = file.stat().st_size
            file.unlink()
            raise StorageError(
                f"{prefix}/{name} in {store.url!r} is not what its manifest says ({found} bytes of "
                f"{entry.size}, or other content): it was changed or cut there. Push it again"
            )

    store.run_each(fetch, names)
    if manifest is None:
        check_safetensors(target / ADAPTER_FILE)
    else:
        write_whole(target / MANIFEST_FILE, manifest.model_dump_json(indent=2))
    flush(target)


def check_safetensors(file: Path) -> None:
    """Checks that the file is as long as its header says. Raises StorageError when it is not."""
    size = file.stat().st_size
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = parse_json(stream.read(min(length, size)))
        ends = [row["data_offsets"][1] for name, row in header.items() if name != "__metadata__"]
        expected_size = 8 + length + max(ends, default=0)
    except (struct.error, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise StorageError(f"{file} is no safetensors file ({error}); push it again") from error
    if size != expected_size:
        raise StorageError(f"{file} has {size} bytes of {expected_size}: it was cut. Push it again")


_log = logging.getLogger(__name__)


def pull_model(
    store: Store,
    folder: Path,
    wanted: Wanted,
    *,
    commit: Commit,
    on_progress: OnProgress = lambda done, total: None,
) -> PullReport:
    """Copy a model, or steps of it, from a store.

    A step that is here with other content is refused, unless it is an untouched step 0 or `delete` is set:
    then it is set aside.

    Raises CheckpointMissingError (nothing is there), StepMissingError, StorageError, DeadlineError.
    """
    sizes = store.sizes()
    if not sizes:
        raise CheckpointMissingError(f"No checkpoints found in {store.url!r}: there are no files")
    with pull_lock(folder) as arriving:
        report = PullReport()
        steps = choose_steps(store, sizes, wanted)
        news, aside = _differences(folder, steps, wanted, everything=remote_files(sizes))
        for done, step in enumerate(news):
            on_progress(done, len(news))
            fetch_step(store, step, steps[step], remote_files(sizes)[step], arriving / step_name(step))
        if news or aside:
            commit(news, aside)
        on_progress(len(news), len(news))
        report.steps, report.set_aside = news, aside
        if wanted.side_files:
            _pull_side_files(store, folder, sizes, wanted, report)
        return report


def choose_steps(store: Store, sizes: Mapping[str, int], wanted: Wanted) -> dict[int, Manifest | None]:
    """Complete steps in the store that are asked for. Raises CheckpointMissingError, StepMissingError."""
    there = [
        step
        for step in remote_files(sizes)
        if not excluded(f"{CHECKPOINTS}/{step_name(step)}", wanted.exclude)
    ]
    if wanted.step is None and wanted.not_after is None and not wanted.newest:
        return complete_steps(store, sizes, there)
    complete = complete_steps(store, sizes, there)
    if not complete:
        raise CheckpointMissingError(f"No checkpoints found in {store.url!r}")
    fit = [step for step in complete if wanted.not_after is None or step <= wanted.not_after]
    if wanted.step is not None:
        fit = [step for step in fit if step == wanted.step]
    if not fit:
        which = f"of step {wanted.step}" if wanted.step is not None else f"not after step {wanted.not_after}"
        raise StepMissingError(
            f"No checkpoints found {which} in {store.url!r}. Available steps: {sorted(complete)}"
        )
    return {max(fit): complete[max(fit)]}


def _differences(
    folder: Path, steps: Mapping[int, Manifest | None], wanted: Wanted, *, everything: Collection[int]
) -> tuple[list[int], list[int]]:
    """Steps to fetch, and steps here that give way."""
    here = local_steps(folder)
    news, aside = [], []
    for step, manifest in steps.items():
        if step not in here:
            news.append(step)
        elif manifest is not None and _manifest_here(here[step]) != manifest:
            if not wanted.delete and list(here) != [0]:
                raise StorageError(
                    f"step {step} in {folder} differs from the one in the bucket: both went on by "
                    "themselves. Pull into another folder or name; delete=True sets the one here aside"
                )
            news.append(step)
            aside.append(step)
    if wanted.delete and wanted.step is None and not wanted.newest:
        aside += [step for step in here if step not in everything]
    return news, sorted(aside)


def _manifest_here(checkpoint: Path) -> Manifest | None:
    try:
        return local_manifest(checkpoint)
    except (OSError, ValidationError) as error:
        _log.warning("the manifest of %s is unusable: %s", checkpoint, error)
        return None


def _pull_side_files(
    store: Store, folder: Path, sizes: Mapping[str, int], wanted: Wanted, report: PullReport
) -> None:
    known = remote_index(store, sizes)
    paths = [path for path in sizes if is_side_file(path) and not excluded(path, wanted.exclude)]

    def pull(path: str) -> None:
        target, entry = folder / path, known.files.get(path)
        here = target.read_bytes() if target.is_file() else None
        if here is not None and entry is not None and entry_of(here) == entry:
            return
        content = store.read(path)
        with not_written_meanwhile(folder, path):
            here = target.read_bytes() if target.is_file() else None
            if here is None or (content != here and not keeps_more(path, here, content)):
                write_whole(target, content)
                report.files.append(path)

    store.run_each(pull, paths)
    if wanted.delete:
        for path in set(local_side_files(folder, wanted.exclude)).difference(sizes):
            with not_written_meanwhile(folder, path):
                (folder / path).unlink()
            report.removed.append(path)


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
