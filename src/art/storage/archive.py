"""A checkpoint's adapter as one zip file behind a URL."""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

from art.storage.side_files import ARCHIVES
from art.storage.steps import step_name
from art.storage.store import Store
from art.wire.checkpoint import JOB_FILE, MANIFEST_FILE, STATE_FILE

_TRAINING = (JOB_FILE, MANIFEST_FILE, STATE_FILE, "optimizer.safetensors", "critic.safetensors")
"""What only training needs."""


def archive_step(store: Store, checkpoint: Path, step: int) -> str:
    """Put `zipped-steps/{step:04d}.zip` with the adapter's files into a store; returns its path there.

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
