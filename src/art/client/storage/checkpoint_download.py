"""Checkpoints brought home over HTTP: a manifest, then its files, each checked against its digest."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import httpx

from art.client.http.connection import CONNECT_S, ServerConnection, response_error
from art.errors import (
    CheckpointError,
    CheckpointMissingError,
    ConfigurationError,
    DeadlineError,
    ServerUnreachableError,
    StepMissingError,
)
from art.process.files import create_private, make_private_folder
from art.retrying import retry
from art.tracking.progress import open_progress
from art.wire.models import Manifest, ManifestEntry, ModelInfo, manifest_entry, stays_in_folder

IDLE_S = 60.0
"""The limit in seconds without a byte of a file, after which the try fails."""
TOTAL_S = 3600.0
TRIES = 4
"""The number of tries for one file."""
_CHUNK = 1 << 20


async def fetch_checkpoint(
    connection: ServerConnection,
    model: str,
    step: int | Literal["latest"] | None,
    place: Callable[[int], Path],
    *,
    verbose: bool = False,
    total_s: float = TOTAL_S,
) -> Path:
    """Download a step of the model at route `model` to `place(step)`; returns that folder.

    None and "latest": the newest step; an untrained step 0 counts as none. A folder that has the very files
    is left alone. It appears whole or not at all; files that were in it before stay, those of the same
    names are replaced.

    Raises CheckpointMissingError, StepMissingError, CheckpointError (a file differs from its digest, or has
    a name that is a path), DeadlineError after `total_s` seconds, ServerUnreachableError.
    """
    try:
        async with asyncio.timeout(total_s):
            chosen = _chosen_step(await connection.call("GET", model, ModelInfo), step)
            route = f"{model}/checkpoints/{chosen}/files"
            files = (await connection.call("GET", route, Manifest)).files
            _check_names(files)
            target = place(chosen)
            if await asyncio.to_thread(_is_complete, target, files):
                return target
            fresh = target.with_name(f".{target.name}.{secrets.token_hex(4)}.fetching")
            make_private_folder(fresh)
            try:
                with open_progress(f"fetch step {chosen}" if verbose else None, len(files)) as progress:
                    for name, entry in files.items():
                        await _download_file(
                            connection, f"{route}/{quote(name, safe='')}", fresh / name, entry
                        )
                        progress.advance(1, {})
                await asyncio.to_thread(_replace_folder, fresh, target)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
    except TimeoutError as error:
        if isinstance(error, DeadlineError):
            raise
        raise DeadlineError(f"GET {model}: the checkpoint was not here within {total_s:g} s") from error
    return target


def _chosen_step(info: ModelInfo, step: int | Literal["latest"] | None) -> int:
    name = f"{info.project}/{info.name}"
    if step is None or step == "latest":
        newest = max(info.checkpoints, default=0)
        if newest == 0:
            raise CheckpointMissingError(
                f"No checkpoints found for model {name}: it has not been trained yet"
            )
        return newest
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ConfigurationError(f"step={step!r}: it is a number, 'latest' or None")
    if step not in info.checkpoints:
        raise StepMissingError(
            f"No checkpoint of step {step} found for model {name}. Available steps: {info.checkpoints}"
        )
    return step


def _check_names(files: dict[str, ManifestEntry]) -> None:
    """A server may not choose where on this machine it writes."""
    for name in files:
        if not stays_in_folder(name):
            raise CheckpointError(f"the server names a file {name!r}, which is a path: nothing was written")


async def _download_file(connection: ServerConnection, route: str, path: Path, entry: ManifestEntry) -> None:
    """One file, asked for again when the connection is lost."""
    stream = retry(TRIES, delay=0.2, exceptions=(httpx.TransportError,))(_stream)
    try:
        digest, size = await stream(connection, route, path)
    except httpx.TransportError as error:
        raise ServerUnreachableError(f"GET {route}: {type(error).__name__}: {error}") from error
    if (digest, size) != (entry.sha256, entry.size):
        raise CheckpointError(
            f"GET {route}: {size} bytes with sha256 {digest}, but the manifest says {entry.size} "
            f"bytes with {entry.sha256}; pull again, and look at the server's disk if that stays"
        )


async def _stream(connection: ServerConnection, route: str, path: Path) -> tuple[str, int]:
    client, digest, size = await connection.client(), hashlib.sha256(), 0
    timeout = httpx.Timeout(IDLE_S, connect=CONNECT_S)
    create_private(path)
    with path.open("wb") as file:
        async with client.stream("GET", route, timeout=timeout) as response:
            if response.status_code >= 400:
                await response.aread()
                raise response_error(response, f"GET {route}")
            async for chunk in response.aiter_bytes(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
                await asyncio.to_thread(file.write, chunk)
    return digest.hexdigest(), size


def _is_complete(folder: Path, files: dict[str, ManifestEntry]) -> bool:
    """Returns whether the folder holds these very files."""
    for name, entry in files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != entry.size:
            return False
    return all(manifest_entry(folder / name) == entry for name, entry in files.items())


def _replace_folder(fresh: Path, target: Path) -> None:
    """Replaces the folder in one move if the place is free; else file by file, each atomically."""
    if not target.exists():
        fresh.rename(target)
        return
    for file in fresh.iterdir():
        file.replace(target / file.name)
