"""A model's folder into a store: only what changed, checkpoints first, each complete or not there.

A step's marker goes first and its manifest last: whoever reads in between, or after a crash, sees an
incomplete step and leaves it alone.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from art.errors import CheckpointMissingError, StorageError
from art.storage.side_files import (
    INDEX,
    entry_of,
    excluded,
    is_side_file,
    local_side_files,
    pushed_content,
    remote_index,
)
from art.storage.steps import CHECKPOINTS, TORN, local_manifest, local_steps, remote_files, step_name
from art.storage.store import Store, Told
from art.wire.checkpoint import MANIFEST_FILE, Manifest, ManifestEntry

_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class PushReport:
    """What a push did. Steps and files that were there already are not in it."""

    steps: list[int] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    bytes: int = 0


def push_model(
    folder: Path,
    store: Store,
    *,
    delete: bool = False,
    exclude: Collection[str] = (),
    told: Told = lambda done, total: None,
) -> PushReport:
    """Copy a model to a store. delete: what is not here goes there too. exclude: shell patterns of relative
    paths.

    Raises CheckpointMissingError when there is no such model here, ForbiddenBucketCreationError,
    StorageError, DeadlineError.
    """
    if not folder.is_dir():
        raise CheckpointMissingError(f"there is no model in {folder}: nothing can be pushed")
    store.make_bucket()
    sizes, report = store.sizes(), PushReport()
    there = remote_files(sizes)
    steps = {s: path for s, path in local_steps(folder).items() if not excluded(_prefix(s), exclude)}
    for done, (step, path) in enumerate(steps.items()):
        told(done, len(steps))
        _push_step(store, step, path, there.get(step, {}), report)
    _push_side_files(store, folder, sizes, exclude, report)
    if delete:
        _remove_others(store, folder, sizes, steps, exclude, report)
    told(len(steps), len(steps))
    return report


def _push_step(store: Store, step: int, path: Path, there: Mapping[str, int], report: PushReport) -> None:
    prefix = _prefix(step)
    try:
        manifest = local_manifest(path)
    except (OSError, ValidationError) as error:
        raise StorageError(f"checkpoint {path} cannot be pushed: {error}; restore or remove it") from error
    content = manifest.model_dump_json(indent=2).encode()
    if _is_there(store, prefix, manifest, there):
        return
    store.write(f"{prefix}/{TORN}", json.dumps({"step": step}).encode())
    if MANIFEST_FILE in there:
        store.remove(f"{prefix}/{MANIFEST_FILE}")
    try:
        store.each(lambda name: store.upload(path / name, f"{prefix}/{name}"), sorted(manifest.files))
    except FileNotFoundError as error:
        raise StorageError(
            f"checkpoint {path} disappeared while it was pushed: {error}; push again"
        ) from error
    store.write(f"{prefix}/{MANIFEST_FILE}", content)
    store.remove(f"{prefix}/{TORN}")
    report.steps.append(step)
    report.bytes += sum(entry.size for entry in manifest.files.values())


def _is_there(store: Store, prefix: str, manifest: Manifest, there: Mapping[str, int]) -> bool:
    if MANIFEST_FILE not in there or any(there.get(n) != e.size for n, e in manifest.files.items()):
        return False
    try:
        return Manifest.model_validate_json(store.read(f"{prefix}/{MANIFEST_FILE}")) == manifest
    except (FileNotFoundError, ValidationError) as error:
        _log.warning("the manifest of %s in %s is unusable, it is pushed again: %s", prefix, store.url, error)
        return False


def _push_side_files(
    store: Store, folder: Path, sizes: Mapping[str, int], exclude: Collection[str], report: PushReport
) -> None:
    known = remote_index(store, sizes)

    def push(path: str) -> ManifestEntry:
        content = pushed_content(folder, path)
        entry = entry_of(content)
        if known.files.get(path) != entry or sizes.get(path) != entry.size:
            store.write(path, content)
            report.files.append(path)
            report.bytes += entry.size
        return entry

    paths = local_side_files(folder, exclude)
    try:
        entries = dict(zip(paths, store.each(push, paths), strict=True))
    except FileNotFoundError as error:
        raise StorageError(
            f"a file of {folder} disappeared while it was pushed: {error}; push again"
        ) from error
    index = Manifest(files={**known.files, **entries})
    if index != known:
        store.write(INDEX, index.model_dump_json(indent=2).encode())


def _remove_others(
    store: Store,
    folder: Path,
    sizes: Mapping[str, int],
    steps: Collection[int],
    exclude: Collection[str],
    report: PushReport,
) -> None:
    for step, files in remote_files(sizes).items():
        if step in steps or excluded(_prefix(step), exclude):
            continue
        prefix = _prefix(step)
        store.write(f"{prefix}/{TORN}", b"{}")  # from here on it is no step, whatever happens
        for name in sorted(files, key=lambda name: name != MANIFEST_FILE):
            store.remove(f"{prefix}/{name}")
        store.remove(f"{prefix}/{TORN}")
        report.removed.append(prefix)
    here = set(local_side_files(folder, ()))
    gone = [p for p in sizes if is_side_file(p) and p not in here and not excluded(p, exclude)]
    if gone:
        index = remote_index(store, [INDEX])
        left = Manifest(files={path: entry for path, entry in index.files.items() if path not in gone})
        store.write(INDEX, left.model_dump_json(indent=2).encode())
        store.each(store.remove, gone)
        report.removed += gone


def _prefix(step: int) -> str:
    return f"{CHECKPOINTS}/{step_name(step)}"
