"""The files of a model beside its checkpoints: history, state, trajectories. Others write while we read."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import logging
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from art.errors import StorageError
from art.storage.steps import CHECKPOINTS
from art.storage.store import Store
from art.tracking.folder_lock import locked
from art.wire.checkpoint import Manifest, ManifestEntry

_log = logging.getLogger(__name__)

INDEX = "files.json"
ARCHIVES = "zipped-steps"
_OURS = ("registration.json", INDEX)
"""A registration belongs to the server that made it; the index to the store."""
_MODEL = "model.json"
_SECRET = "inference_api_key"
_STATE = ("history.jsonl", "state.json")
_LOGS = "trajectories"


def local_side_files(folder: Path, exclude: Collection[str]) -> list[str]:
    """Relative paths: all but checkpoints, hidden files, links, and what the patterns name."""
    found = []
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        parts = relative.parts
        hidden = any(part.startswith(".") for part in parts)
        skipped = parts[0] in (CHECKPOINTS, ARCHIVES) or str(relative) in _OURS
        if not (hidden or skipped or path.is_symlink()) and path.is_file():
            found.append(relative.as_posix())
    return [path for path in found if not excluded(path, exclude)]


def excluded(path: str, patterns: Iterable[str]) -> bool:
    """Whether a shell pattern names the path, or a folder that it is in."""
    return any(
        fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, f"{pattern.rstrip('/')}/*")
        for pattern in patterns
    )


def pushed_content(folder: Path, path: str) -> bytes:
    """What leaves this machine: `model.json` goes without the model's key.

    Raises OSError, StorageError when that file is no JSON, so that nobody knows what is in it.
    """
    content = (folder / path).read_bytes()
    if Path(path).name != _MODEL:
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
    """What the last push said of the files beside the checkpoints; empty when there is no such word."""
    if INDEX not in sizes:
        return Manifest(files={})
    try:
        return Manifest.model_validate_json(store.read(INDEX))
    except (FileNotFoundError, ValidationError) as error:
        _log.warning("%s in %s is unusable, all files are copied: %s", INDEX, store.url, error)
        return Manifest(files={})


def is_side_file(path: str) -> bool:
    """Whether a path of a store may be written into a model's folder."""
    parts = path.split("/")
    fine = all(part and part not in (".", "..") and not part.startswith(".") for part in parts)
    return fine and "\\" not in path and parts[0] not in (CHECKPOINTS, ARCHIVES) and path not in _OURS


def keeps_more(path: str, here: bytes, there: bytes) -> bool:
    """Whether the local file, of lines that are only added, went on since it was pushed."""
    return Path(path).suffix == ".jsonl" and here.startswith(there)


def not_written_meanwhile(folder: Path, path: str) -> AbstractContextManager[None]:
    """Held while a file is replaced or removed: a program may be adding to its log, which takes this lock.

    Raises DeadlineError when a program holds it for too long.
    """
    logged = path in _STATE or path.startswith(f"{_LOGS}/")
    return locked((folder / path).parent) if logged else nullcontext()


def _without_secret(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_secret(one) for key, one in value.items() if key != _SECRET}
    return [_without_secret(one) for one in value] if isinstance(value, list) else value
