"""A model from a store into its folder here.

Steps are fetched into the hidden folder `.arriving`, held against their manifests, and committed together.
What an interrupted pull has fetched is used by the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from art.errors import CheckpointMissingError, StepMissingError, StorageError
from art.process.durable import write_whole
from art.storage.arriving import Commit, only_pull
from art.storage.fetch import fetch_step
from art.storage.side_files import (
    entry_of,
    excluded,
    is_side_file,
    keeps_more,
    local_side_files,
    not_written_meanwhile,
    remote_index,
)
from art.storage.steps import (
    CHECKPOINTS,
    complete_steps,
    local_manifest,
    local_steps,
    remote_files,
    step_name,
)
from art.storage.store import Store, Told
from art.wire.checkpoint import Manifest

_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class PullReport:
    """What a pull did. Steps and files that were here already are not in it."""

    steps: list[int] = field(default_factory=list)
    set_aside: list[int] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is pulled. step, not_after, newest: which checkpoints (all, where none is given). side_files:
    whether the files beside the checkpoints come too. delete: what is not there goes here too.
    """

    step: int | None = None
    not_after: int | None = None
    newest: bool = False
    side_files: bool = True
    delete: bool = False
    exclude: Collection[str] = ()


def pull_model(
    store: Store, folder: Path, wanted: Wanted, *, commit: Commit, told: Told = lambda done, total: None
) -> PullReport:
    """Copy a model, or steps of it, from a store.

    A step that is here with other content is refused, unless it is an untouched step 0 or `delete` is set:
    then it is set aside.

    Raises CheckpointMissingError (nothing is there), StepMissingError, StorageError, DeadlineError.
    """
    sizes = store.sizes()
    if not sizes:
        raise CheckpointMissingError(f"No checkpoints found in {store.url!r}: there are no files")
    with only_pull(folder) as arriving:
        report = PullReport()
        steps = choose_steps(store, sizes, wanted)
        news, aside = _differences(folder, steps, wanted, everything=remote_files(sizes))
        for done, step in enumerate(news):
            told(done, len(news))
            fetch_step(store, step, steps[step], remote_files(sizes)[step], arriving / step_name(step))
        if news or aside:
            commit(news, aside)
        told(len(news), len(news))
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

    store.each(pull, paths)
    if wanted.delete:
        for path in set(local_side_files(folder, wanted.exclude)).difference(sizes):
            with not_written_meanwhile(folder, path):
                (folder / path).unlink()
            report.removed.append(path)
