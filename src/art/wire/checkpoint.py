"""The files of a checkpoint folder that more than one process reads."""

from __future__ import annotations

import hashlib
from pathlib import Path

from art.wire.strict import Strict

STATE_FILE = "trainer_state.json"
MANIFEST_FILE = "manifest.json"
JOB_FILE = "job.json"
ADAPTER_FILE = "adapter_model.safetensors"
ADAPTER_CONFIG_FILE = "adapter_config.json"


class ManifestEntry(Strict):
    """One file of a manifest."""

    sha256: str
    size: int


class Manifest(Strict):
    """Size and digest of each file of a folder, written last: a folder without it is not complete."""

    files: dict[str, ManifestEntry]


def stays_in_folder(name: str) -> bool:
    """Whether it is the name of a file right in its folder, and no path, whoever wrote the manifest."""
    return name not in ("", ".", "..") and Path(name).name == name and "\\" not in name


def manifest_entry(file: Path) -> ManifestEntry:
    """Of a file on this machine."""
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return ManifestEntry(sha256=digest, size=file.stat().st_size)
