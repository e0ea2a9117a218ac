"""The folders that GGUF files were converted into, in the user's cache.

    ~/.cache/art/gguf/DIGEST-v1/            the folder, with a card and a record
    ~/.cache/art/gguf/.DIGEST-v1.lock       held by the program that converts it
    ~/.cache/art/gguf/.DIGEST-v1.XXXX.new   being written: no model yet

DIGEST is the file's content. The folder is written under another name and renamed (`conversion`), so it is
there whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
from importlib.util import find_spec
from pathlib import Path

from art.engine.base_models import MadeFolder
from art.errors import ConfigurationError, require_extra
from art.process.imports import import_lock
from art.process.runtimes import user_cache
from art.wire.records import HUB
from art_extensions.gguf.names import PACKAGED, hub_file

VERSION = 1
"""The version of the conversion. It rises when the same file is converted to another content."""
RECORD_FILE = "art_gguf.json"


def gguf_cache() -> Path:
    """Returns where converted files are."""
    return user_cache() / "gguf"


def digest_of(file: Path) -> str:
    """Returns the SHA-256 of a file. Raises ConfigurationError where it cannot be read."""
    try:
        with file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from error


def converted_name(digest: str) -> str:
    """Returns the name of the folder in the cache."""
    return f"{digest[:32]}-v{VERSION}"


def packaged_file(source: str) -> Path | None:
    """Returns the file of an installed package. The package itself is not imported; it may need others."""
    package = PACKAGED[source]
    try:
        spec = find_spec(package.module)
    except ValueError:  # a program's stand-in in `sys.modules`, which has no files
        return None
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    files = [Path(place) / package.file for place in places]
    return next((file for file in files if file.is_file()), None)


def file_here(source: str) -> Path | None:
    """Returns the GGUF file of a source where this machine has it, without a network."""
    if source in PACKAGED:
        return packaged_file(source)
    if not source.startswith(HUB):
        return Path(source)
    require_extra("hub", f"base_model {source!r}")
    with import_lock:
        from huggingface_hub import try_to_load_from_cache

    repository, name = hub_file(source)
    found = try_to_load_from_cache(repository, name)
    return Path(found) if isinstance(found, str) else None


def find_converted(source: str) -> Path | None:
    """Returns the folder of a source that was converted before. Reads the whole file: call it in a thread."""
    file = file_here(source)
    if file is None and source not in PACKAGED:
        return None
    digest = PACKAGED[source].digest if file is None else digest_of(file)
    folder = gguf_cache() / converted_name(digest)
    return folder if folder.is_dir() else None


def list_converted() -> list[MadeFolder]:
    """Returns what the cache has, by source. A folder without a readable record is left out."""
    found = []
    for record in gguf_cache().glob(f"*/{RECORD_FILE}"):
        try:
            source = str(json.loads(record.read_bytes())["source"])
            size = sum(file.stat().st_size for file in record.parent.iterdir())
        except (OSError, ValueError, KeyError, TypeError):
            continue
        found.append(MadeFolder(folder=record.parent, source=source, size_bytes=size))
    return sorted(found, key=lambda one: one.source)
