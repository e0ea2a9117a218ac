"""The base's tokenizer beside a step's weights, so that the folder loads by itself: `AutoTokenizer`, PEFT, a
push to the hub.

A step's copy is a hard link to the one in the newest step beside it, where that holds the same bytes: a
hundred steps cost one tokenizer. The base's own files are copied and never linked, so that nothing in a
checkpoint leads back to a package or to the hub's cache; and a copy is read-only, because whoever writes into
one writes into every step that shares it.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from art.process.durable import flush
from art.wire.checkpoint import ManifestEntry, manifest_entry

NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
)
_READ_ONLY = ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)


class TokenizerFiles:
    """Of one base model: a folder or a hub name; None where its weights came from neither."""

    def __init__(self, source: str | None) -> None:
        self._source = source
        self._entries: dict[tuple[int, int, int, int], ManifestEntry] = {}
        """By device, inode, time of change and size: a file is read for its digest once, links included."""

    def place(self, folder: Path) -> dict[str, ManifestEntry]:
        """Put the files that the base has into a checkpoint that is being written beside the other steps.
        Names that are there already are left alone. What is placed is on disk.

        Raises OSError.
        """
        earlier = newest_step(folder.parent)
        return {
            name: self._place(file, folder / name, earlier)
            for name, file in find_tokenizer(self._source).items()
            if not (folder / name).exists()
        }

    def _place(self, file: Path, target: Path, earlier: Path | None) -> ManifestEntry:
        entry = self._entry(file)
        if earlier is not None and self._link(earlier / target.name, target, entry):
            return entry
        shutil.copyfile(file, target)
        target.chmod(target.stat().st_mode & _READ_ONLY)
        flush(target)
        return self._entry(target)

    def _link(self, candidate: Path, target: Path, entry: ManifestEntry) -> bool:
        """Whether the candidate holds these bytes and could be linked."""
        try:
            # No symbolic link, and no file of another program that may be linked to anything.
            found = candidate.lstat()
            if not stat.S_ISREG(found.st_mode) or found.st_mode & ~_READ_ONLY:
                return False
            if self._entry(candidate) != entry:
                return False
            os.link(candidate, target)
        except OSError:  # deleted meanwhile, or a file system without links: a copy does it
            return False
        return True

    def _entry(self, file: Path) -> ManifestEntry:
        found = file.stat()
        key = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
        if key not in self._entries:
            self._entries[key] = manifest_entry(file)
        return self._entries[key]


def find_tokenizer(source: str | None, *, cache: Path | None = None) -> dict[str, Path]:
    """Name -> file of a base's tokenizer, in its folder or in the hub's cache on this machine; no network.

    cache: the cache's folder, where not the usual one.
    """
    if source is None:
        return {}
    folder = Path(source).expanduser()
    if folder.is_dir():
        return {name: folder / name for name in NAMES if (folder / name).is_file()}
    from transformers.utils.hub import cached_files

    try:
        found = cached_files(
            source,
            list(NAMES),
            cache_dir=cache,
            local_files_only=True,
            _raise_exceptions_for_missing_entries=False,
        )
    except OSError:  # no hub name either: a folder that was removed after its weights were loaded
        return {}
    return {Path(file).name: Path(file) for file in found or ()}


def newest_step(folder: Path) -> Path | None:
    """The committed step with the largest number, if there is any."""
    steps = [name for name in os.listdir(folder) if name.isdecimal()]
    return folder / max(steps, key=int) if steps else None
