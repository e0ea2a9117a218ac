"""One step from a store: whole and verified, or an error."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

from art.errors import StorageError
from art.process.durable import flush
from art.storage.steps import CHECKPOINTS, step_name
from art.storage.store import Store
from art.wire.checkpoint import ADAPTER_FILE, MANIFEST_FILE, Manifest, manifest_entry


def fetch_step(
    store: Store, step: int, manifest: Manifest | None, there: Mapping[str, int], target: Path
) -> None:
    """One step, whole and verified, or an error. What lies in `target` already is used where it fits."""
    target.mkdir(parents=True, exist_ok=True)
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
        flush(file)
        if entry is not None and manifest_entry(file) != entry:
            found = file.stat().st_size
            file.unlink()
            raise StorageError(
                f"{prefix}/{name} in {store.url!r} is not what its manifest says ({found} bytes of "
                f"{entry.size}, or other content): it was changed or cut there. Push it again"
            )

    store.each(fetch, names)
    if manifest is None:
        check_safetensors(target / ADAPTER_FILE)
    else:
        (target / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=2))
        flush(target / MANIFEST_FILE)
    flush(target)


def check_safetensors(file: Path) -> None:
    """Whether the file is as long as its header says. Raises StorageError when it is not."""
    size = file.stat().st_size
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(min(length, size)))
        ends = [row["data_offsets"][1] for name, row in header.items() if name != "__metadata__"]
        whole = 8 + length + max(ends, default=0)
    except (struct.error, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise StorageError(f"{file} is no safetensors file ({error}); push it again") from error
    if size != whole:
        raise StorageError(f"{file} has {size} bytes of {whole}: it was cut. Push it again")
