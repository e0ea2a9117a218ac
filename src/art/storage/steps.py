"""The checkpoints of a model's folder, here and in a store, and whether each is complete."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import ValidationError

from art.storage.store import Store
from art.wire.checkpoint import (
    ADAPTER_CONFIG_FILE,
    ADAPTER_FILE,
    JOB_FILE,
    MANIFEST_FILE,
    STATE_FILE,
    Manifest,
    manifest_entry,
    stays_in_folder,
)

_log = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
TORN = ".incomplete"
"""Lies in a step's folder while it is uploaded or removed."""
_STEP = re.compile(r"\d{4,}")
_REMOTE = re.compile(rf"{CHECKPOINTS}/(\d{{4,}})/([^/]+)")


def step_name(step: int) -> str:
    return f"{step:04d}"


def local_steps(folder: Path) -> dict[int, Path]:
    """Committed steps of a model's folder, oldest first."""
    checkpoints = folder / CHECKPOINTS
    if not checkpoints.is_dir():
        return {}
    found = {int(path.name): path for path in checkpoints.iterdir() if _STEP.fullmatch(path.name)}
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
    manifests = store.each(
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
