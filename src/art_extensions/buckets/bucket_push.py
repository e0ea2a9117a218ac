"""A model's folder into a bucket: only what changed, checkpoints first, each complete or not there.

A step's marker goes first and its manifest last: whoever reads in between, or after a crash, sees an
incomplete step and leaves it alone. Beside the checkpoints lie history, state and trajectories; others write
them while we read.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import logging
import re
import tempfile
import zipfile
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from art.client.storage.bucket_store import PushReport
from art.errors import CheckpointMissingError, StorageError
from art.tracking.folders import lock_folder
from art.wire.models import (
    ADAPTER_CONFIG_FILE,
    ADAPTER_FILE,
    JOB_FILE,
    MANIFEST_FILE,
    STATE_FILE,
    STEP_FOLDER,
    TRAINERS_FILES,
    Manifest,
    ManifestEntry,
    manifest_entry,
    stays_in_folder,
)
from art.wire.training import TOKEN_FILE
from art_extensions.buckets.store import OnProgress, Store

_log = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
TORN = ".incomplete"
"""Lies in a step's folder while it is uploaded or removed."""
_REMOTE = re.compile(rf"{CHECKPOINTS}/({STEP_FOLDER.pattern})/([^/]+)")


def step_name(step: int) -> str:
    return f"{step:04d}"


def local_steps(folder: Path) -> dict[int, Path]:
    """Committed steps of a model's folder, oldest first."""
    checkpoints = folder / CHECKPOINTS
    if not checkpoints.is_dir():
        return {}
    found = {int(path.name): path for path in checkpoints.iterdir() if STEP_FOLDER.fullmatch(path.name)}
    return dict(sorted(found.items()))


def local_manifest(checkpoint: Path) -> Manifest:
    """The manifest that its writer left, or one made now for a folder that another program wrote.

    Raises OSError, ValidationError.
    """
    file = checkpoint / MANIFEST_FILE
    if file.exists():
        return Manifest.model_validate_json(file.read_bytes())
    plain = [path for path in sorted(checkpoint.iterdir()) if path.is_file() and not path.is_symlink()]
    skipped = (JOB_FILE, MANIFEST_FILE)
    return Manifest(files={p.name: manifest_entry(p) for p in plain if p.name not in skipped})


def remote_files(sizes: Mapping[str, int]) -> dict[int, dict[str, int]]:
    """Step -> file -> bytes, of everything that lies in checkpoint folders of a store."""
    steps: dict[int, dict[str, int]] = {}
    for path, size in sizes.items():
        if found := _REMOTE.fullmatch(path):
            steps.setdefault(int(found[1]), {})[found[2]] = size
    return dict(sorted(steps.items()))


def complete_steps(
    store: Store, sizes: Mapping[str, int], wanted: Iterable[int] | None = None
) -> dict[int, Manifest | None]:
    """Steps that are whole in a store, with their manifests; None for a plain PEFT folder that another
    program put there. Torn uploads are told and left out.
    """
    files = remote_files(sizes)
    asked = sorted(files) if wanted is None else [step for step in wanted if step in files]
    manifests = store.run_each(
        lambda name: _manifest_in(store, int(name), files[int(name)]), list(map(str, asked))
    )
    complete: dict[int, Manifest | None] = {}
    for step, manifest in zip(asked, manifests, strict=True):
        there = files[step]
        if manifest is not None and all(there.get(n) == e.size for n, e in manifest.files.items()):
            complete[step] = manifest
        elif MANIFEST_FILE not in there and _is_plain(there):
            complete[step] = None
        else:
            _log.warning("step %d in %s is incomplete: its upload was interrupted", step, store.url)
    return complete


def _manifest_in(store: Store, step: int, there: Mapping[str, int]) -> Manifest | None:
    if MANIFEST_FILE not in there:
        return None
    try:
        content = store.read(f"{CHECKPOINTS}/{step_name(step)}/{MANIFEST_FILE}")
        manifest = Manifest.model_validate_json(content)
    except (FileNotFoundError, ValidationError, json.JSONDecodeError) as error:
        _log.warning("the manifest of step %d in %s is unusable: %s", step, store.url, error)
        return None
    if not all(map(stays_in_folder, manifest.files)):
        _log.warning("the manifest of step %d in %s names paths outside of its folder", step, store.url)
        return None
    return manifest


def _is_plain(there: Mapping[str, int]) -> bool:
    """A PEFT folder that is not an interrupted upload of ours."""
    return {ADAPTER_FILE, ADAPTER_CONFIG_FILE} <= set(there) and not {TORN, STATE_FILE} & set(there)


INDEX = "files.json"
ARCHIVES = "zipped-steps"
_OUR_FILES = ("registration.json", INDEX)
"""A registration belongs to the server that made it; the index to the store."""
_MODEL_FILE = "model.json"
_SECRET = "inference_api_key"
_STATE = ("history.jsonl", "findings.jsonl", "state.json")
_LOGS = "trajectories"


def local_side_files(folder: Path, exclude: Collection[str]) -> list[str]:
    """Relative paths: all but checkpoints, the record of each token (megabytes a step, which the server
    deletes again), hidden files, links, and what the patterns name.
    """
    found = []
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        parts = relative.parts
        hidden = any(part.startswith(".") for part in parts)
        skipped = parts[0] in (CHECKPOINTS, ARCHIVES) or str(relative) in _OUR_FILES
        skipped = skipped or path.name == TOKEN_FILE
        if not (hidden or skipped or path.is_symlink()) and path.is_file():
            found.append(relative.as_posix())
    return [path for path in found if not excluded(path, exclude)]


def excluded(path: str, patterns: Iterable[str]) -> bool:
    """Returns whether a shell pattern names the path, or a folder that it is in."""
    return any(
        fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, f"{pattern.rstrip('/')}/*")
        for pattern in patterns
    )


def pushed_content(folder: Path, path: str) -> bytes:
    """Returns the content to upload: `model.json` without the model's key.

    Raises OSError, StorageError when that file is no JSON, so that nobody knows what is in it.
    """
    content = (folder / path).read_bytes()
    if Path(path).name != _MODEL_FILE:
        return content
    try:
        return json.dumps(_without_secret(json.loads(content)), indent=2).encode()
    except ValueError as error:
        raise StorageError(
            f"{folder / path} is no JSON ({error}), and may hold a key: it is not pushed. Repair it, or name "
            "it in `exclude`"
        ) from error


def entry_of(content: bytes) -> ManifestEntry:
    return ManifestEntry(sha256=hashlib.sha256(content).hexdigest(), size=len(content))


def remote_index(store: Store, sizes: Collection[str]) -> Manifest:
    """Returns the last push's index of the files beside the checkpoints; empty if there is none."""
    if INDEX not in sizes:
        return Manifest(files={})
    try:
        return Manifest.model_validate_json(store.read(INDEX))
    except (FileNotFoundError, ValidationError) as error:
        _log.warning("%s in %s is unusable, all files are copied: %s", INDEX, store.url, error)
        return Manifest(files={})


def is_side_file(path: str) -> bool:
    """Returns whether a path of a store may be written into a model's folder."""
    parts = path.split("/")
    fine = all(part and part not in (".", "..") and not part.startswith(".") for part in parts)
    return fine and "\\" not in path and parts[0] not in (CHECKPOINTS, ARCHIVES) and path not in _OUR_FILES


def keeps_more(path: str, here: bytes, there: bytes) -> bool:
    """Returns whether the local file, of lines that are only added, went on since it was pushed."""
    return Path(path).suffix == ".jsonl" and here.startswith(there)


def not_written_meanwhile(folder: Path, path: str) -> AbstractContextManager[None]:
    """Holds the log's lock while a file is replaced or removed, because a program may be adding to its log.

    Raises DeadlineError when a program holds it for too long.
    """
    logged = path in _STATE or path.startswith(f"{_LOGS}/")
    return lock_folder((folder / path).parent) if logged else nullcontext()


def _without_secret(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_secret(one) for key, one in value.items() if key != _SECRET}
    return [_without_secret(one) for one in value] if isinstance(value, list) else value


def push_model(
    folder: Path,
    store: Store,
    *,
    delete: bool = False,
    exclude: Collection[str] = (),
    on_progress: OnProgress = lambda done, total: None,
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
        on_progress(done, len(steps))
        _push_step(store, step, path, there.get(step, {}), report)
    _push_side_files(store, folder, sizes, exclude, report)
    if delete:
        _remove_others(store, folder, sizes, steps, exclude, report)
    on_progress(len(steps), len(steps))
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
        store.run_each(lambda name: store.upload(path / name, f"{prefix}/{name}"), sorted(manifest.files))
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
        entries = dict(zip(paths, store.run_each(push, paths), strict=True))
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
        store.run_each(store.remove, gone)
        report.removed += gone


def _prefix(step: int) -> str:
    return f"{CHECKPOINTS}/{step_name(step)}"


_TRAINING = (JOB_FILE, MANIFEST_FILE, STATE_FILE, *TRAINERS_FILES)
"""What only training needs."""


def archive_step(store: Store, checkpoint: Path, step: int) -> str:
    """Writes `zipped-steps/{step:04d}.zip` with the adapter's files to a store; returns its path there.

    Raises StorageError, ForbiddenBucketCreationError.
    """
    store.make_bucket()
    path = f"{ARCHIVES}/{step_name(step)}.zip"
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "adapter.zip"
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as zipped:  # weights do not compress
            for file in sorted(checkpoint.iterdir()):
                if file.is_file() and not file.is_symlink() and file.name not in _TRAINING:
                    zipped.write(file, file.name)
        store.upload(archive, path)
    return path
