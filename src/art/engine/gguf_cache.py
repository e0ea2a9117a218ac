"""GGUF files as ordinary model folders: each is converted once, into the user's cache.

    ~/.cache/art/gguf/DIGEST-v1/            the folder, with a card and a record
    ~/.cache/art/gguf/.DIGEST-v1.lock       held by the program that converts it
    ~/.cache/art/gguf/.DIGEST-v1.XXXX.new   being written: no model yet

DIGEST is the file's content. A worker with torch converts (`art.training.gguf_conversion`): it writes the
folder under another name and renames it, so a folder is there whole or not at all.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from pydantic import ValidationError

from art.engine.base_models import PACKAGED, BaseModel, hub_file, resolve_base
from art.errors import (
    ConfigurationError,
    DeadlineError,
    DiskError,
    MissingExtraError,
    WorkerDiedError,
    require_extra,
)
from art.process.imports import import_lock
from art.process.runtimes import end_process, user_cache
from art.wire.models import ConversionReply, ConversionRequest
from art.wire.records import HUB

VERSION = 1
"""The version of the conversion. It rises when the same file is converted to another content."""
RECORD_FILE = "art_gguf.json"
CONVERT_S = 3600.0
"""For a download and a conversion, each."""
MODULE = "art.training.gguf_conversion"
_LONGEST_LINE = 1 << 20
_TAIL = 12

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertedModel:
    """A folder of the cache, and what it was made of."""

    folder: Path
    source: str
    """The name or the path of the GGUF file."""
    size_bytes: int


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
    spec = find_spec(package.module)
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


async def with_folder(base: BaseModel, tell: Tell) -> BaseModel:
    """Returns the base model with a folder as its source; a GGUF file is converted where it was not before.

    tell: called with each phase of a conversion. Raises ConfigurationError, DiskError, DeadlineError,
    WorkerDiedError.
    """
    if not base.is_gguf:
        return base
    folder = await asyncio.to_thread(find_converted, base.source)
    if folder is None:
        folder = await _convert(base.source, tell)
    return replace(base, source=str(folder), is_gguf=False)


def local_folder(name: str, tell: Tell = lambda phase: None) -> str:
    """Returns what transformers loads for the name of a base model: a folder, or a name on the hub. Blocks
    while a GGUF file is converted.

    Raises what `with_folder` raises.
    """
    return asyncio.run(with_folder(resolve_base(name), tell)).source


async def _convert(source: str, tell: Tell) -> Path:
    require_extra("local", f"base_model {source!r}")
    require_extra("smollm2", f"base_model {source!r}, a GGUF file,")
    request = ConversionRequest(source=source, cache=str(gguf_cache()), patience_s=CONVERT_S)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "art.process.child", MODULE),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_LONGEST_LINE,
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    last = deque[str](maxlen=_TAIL)
    watching = asyncio.create_task(_keep_last(process.stderr, last))
    try:
        async with asyncio.timeout(3 * CONVERT_S):
            process.stdin.write(request.model_dump_json().encode() + b"\n")
            reply = await _read_reply(process.stdout, tell)
            await process.wait()
            await watching
    except TimeoutError as error:
        raise DeadlineError(f"converting {source} took longer than {3 * CONVERT_S:g} s") from error
    finally:
        watching.cancel()
        await end_process(process)
    if reply is None:
        words = "\n".join(last) or "it may have run out of memory"
        raise WorkerDiedError(f"converting {source} ended with exit code {process.returncode}: {words}")
    if reply.error is not None:
        raise _ERRORS[reply.kind](reply.error)
    assert reply.folder is not None
    return Path(reply.folder)


_ERRORS = {
    "configuration": ConfigurationError,
    "extra": MissingExtraError,
    "disk": DiskError,
    "deadline": DeadlineError,
}


async def _read_reply(stream: asyncio.StreamReader, tell: Tell) -> ConversionReply | None:
    """Returns the last line; None: the process ended without one."""
    async for line in stream:
        try:
            reply = ConversionReply.model_validate_json(line)
        except ValidationError:
            continue  # a library that prints
        if reply.phase is None:
            return reply
        tell(reply.phase)
    return None


async def _keep_last(stream: asyncio.StreamReader, last: deque[str]) -> None:
    while data := await stream.read(65536):
        last.extend(data.decode(errors="replace").splitlines())


def list_converted() -> list[ConvertedModel]:
    """Returns what the cache has, by source. A folder without a readable record is left out."""
    found = []
    for record in gguf_cache().glob(f"*/{RECORD_FILE}"):
        try:
            source = str(json.loads(record.read_bytes())["source"])
            size = sum(file.stat().st_size for file in record.parent.iterdir())
        except (OSError, ValueError, KeyError, TypeError):
            continue
        found.append(ConvertedModel(folder=record.parent, source=source, size_bytes=size))
    return sorted(found, key=lambda one: one.source)
