"""Brings a bucket that releases before 0.4.11 wrote into the layout that is pulled from today."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import defaultdict
from collections.abc import Collection, Mapping

from art.errors import StorageError
from art.tracking.progress import show_log
from art.wire.models import ADAPTER_FILE
from art_extensions.buckets.store import Store, model_url

_OLDER = re.compile(r"(\d+)/(.+)", re.S)
_log = logging.getLogger("art.client.storage")
"""Below `art`, so that `show_log` shows its lines."""


async def migrate_s3_checkpoints_to_new_structure(
    model_name: str,
    project: str,
    s3_bucket: str | None = None,
    prefix: str | None = None,
    dry_run: bool = False,
) -> None:
    """Moves the checkpoints of a model in a bucket from `0001/` to `checkpoints/0001/`. The log says which.

    s3_bucket: a name or any URL that fsspec knows; by default the environment's `BACKUP_BUCKET`. dry_run:
    changes nothing. A step that `checkpoints/` has with other content stays where it is, with a warning. One
    that was interrupted goes on.

    Raises: ConfigurationError when no bucket is named, StorageError, DeadlineError.
    """
    show_log()
    url = model_url(project, model_name, bucket=s3_bucket, prefix=prefix)
    await asyncio.to_thread(lambda: _migrate(Store(url), dry_run))


def _migrate(store: Store, dry_run: bool) -> None:
    sizes = store.sizes()
    folders: dict[str, dict[str, str]] = defaultdict(dict)
    for path in sorted(sizes):
        if found := _OLDER.fullmatch(path):
            folders[found[1]][path] = f"checkpoints/{int(found[1]):04d}/{found[2]}"
    if not folders:
        _log.info("no checkpoints of the older layout in %s", store.url)
    for folder, targets in folders.items():
        there = f"checkpoints/{int(folder):04d}"
        if dry_run:
            _log.info("would move %s to %s in %s (%d files)", folder, there, store.url, len(targets))
        elif _differs(store, targets, {path for path in sizes if path.startswith(f"{there}/")}):
            _log.warning("%s stays where it is: %s in %s has other content", folder, there, store.url)
        else:
            _move(store, targets, sizes)
            sizes |= {target: sizes[path] for path, target in targets.items()}
            _log.info("moved %s to %s in %s (%d files)", folder, there, store.url, len(targets))


def _differs(store: Store, targets: Mapping[str, str], taken: Collection[str]) -> bool:
    """Returns whether there are files at the place of a checkpoint that are not its own."""
    copies = {target: path for path, target in targets.items()}
    return any(one not in copies or store.read(one) != store.read(copies[one]) for one in taken)


def _move(store: Store, targets: Mapping[str, str], sizes: Mapping[str, int]) -> None:
    """Copies each file, the adapter last; removes the originals when all copies are complete."""
    wanting = [path for path, target in targets.items() if target not in sizes]
    adapters = [path for path in wanting if path.endswith(f"/{ADAPTER_FILE}")]
    for paths in ([path for path in wanting if path not in adapters], adapters):
        store.run_each(lambda path: store.copy(path, targets[path]), paths)
    copied = store.sizes()
    torn = [target for path, target in targets.items() if copied.get(target) != sizes[path]]
    if torn:
        raise StorageError(
            f"{torn[0]} in {store.url!r} was not copied completely: remove it and start again. The original "
            "is still there"
        )
    store.run_each(store.remove, list(targets))
