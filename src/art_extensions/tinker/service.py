"""Tinker's API in a process of its own, before a server of this machine or of another one."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from art.client.backends.local_server import LocalServer
from art.client.http.connection import ServerConnection
from art.errors import FolderInUseError
from art.process.files import disk_error, make_private_folder, take_lock, write_whole
from art.process.resources import listen
from art_extensions.tinker.app import TinkerRoutes, make_app
from art_extensions.tinker.art_server import ArtServer
from art_extensions.tinker.leftovers import Leftovers
from art_extensions.tinker.run_folders import RunFolders
from art_extensions.tinker.run_records import RunRecords
from art_extensions.tinker.runs import TrainingRuns
from art_extensions.tinker.samples import SampleFutures
from art_extensions.tinker.sessions import PREFIX, KeyRing, Sessions, owner_of
from art_extensions.tinker.store import TinkerStore

_log = logging.getLogger(__name__)

LAST_REPLIES_S = 5
"""How long requests that are being answered keep a process from ending."""

Connect = Callable[[str | None], ArtServer]


def local_connect(server: LocalServer) -> Connect:
    """Returns what connects to the server of a folder of this machine. The server is started when it is first
    needed, and again when it dies.
    """
    process, starting = server.process, asyncio.Lock()

    async def bring_up() -> None:
        if server.is_ready:
            return
        async with starting:
            if not server.is_ready:
                await asyncio.to_thread(server.bring_up)

    def connect(key: str | None) -> ArtServer:
        async def address() -> tuple[str, str]:
            await bring_up()
            return process.url, process.key if key is None else key

        return ArtServer(ServerConnection(address, bring_up, process.state))

    return connect


def remote_connect(url: str, own_key: str) -> Connect:
    """Returns what connects to a server at an address, whose own key is that of this service."""

    async def wait() -> None:
        """A server of somebody else can only be waited for."""

    def connect(key: str | None) -> ArtServer:
        async def address() -> tuple[str, str]:
            return url, own_key if key is None else key

        return ArtServer(ServerConnection(address, wait))

    return connect


def service_key(folder: Path) -> str:
    """The key of the folder's service, made when it is first needed: the same after each start."""
    file = folder / "key"
    if file.is_file():
        return file.read_text(encoding="utf-8").strip()
    key = f"{PREFIX}art-{secrets.token_urlsafe(32)}"
    write_whole(file, key)
    return key


def make_service(folder: Path, connect: Connect, reports: Sequence[str] = ()) -> tuple[TinkerRoutes, str]:
    """The service of a folder, and its key. reports: the names of the trackers that are told of steps."""
    key = service_key(folder)
    store, keys = TinkerStore(folder / "tinker.sqlite"), KeyRing(own=key, connect=connect)
    folders = RunFolders(owner_of(key), lambda: keys.servers[owner_of(key)])
    make_records = partial(RunRecords, folders=folders, reports=reports)
    runs = TrainingRuns(store, keys.server, Leftovers(store, keys.servers.get), make_records)
    samples = SampleFutures(keys.server)
    return TinkerRoutes(store, keys, runs, samples, Sessions(store, runs, samples)), key


async def serve(
    folder: Path,
    connect: Connect,
    *,
    base_models: Sequence[str] = (),
    host: str,
    port: int,
    on_ready: Callable[[str, str], None],
    reports: Sequence[str] = (),
) -> None:
    """Serves until a signal. base_models: are loaded first, so that the capabilities name them. on_ready: is
    called with the address and the key.

    Raises FolderInUseError where another process serves the folder, DiskError, and what keeps the server
    behind it from serving.
    """
    lock = await asyncio.to_thread(_lock, folder)
    server = connect(None)
    await server.served()
    for base in base_models:
        await server.load_base(base)
    routes, key = make_service(folder, connect, reports)
    listener = listen(host, port)
    config = uvicorn.Config(
        make_app(routes),
        log_level="warning",
        access_log=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=LAST_REPLIES_S,
        lifespan="on",
    )
    address = f"http://{host}:{listener.getsockname()[1]}"
    front = _Told(config, lambda: on_ready(address, key), routes.closing.set)
    try:
        await front.serve(sockets=[listener])
    finally:
        os.close(lock)


def _lock(folder: Path) -> int:
    """Takes the folder for this process: two would carry out the same requests."""
    try:
        make_private_folder(folder)
        lock = take_lock(folder / "lock", patience=2.0 * LAST_REPLIES_S)
    except OSError as error:
        raise disk_error(error, folder, "the folder of Tinker's sessions cannot be used") from error
    if lock is None:
        raise FolderInUseError(
            f"another `art tinker` serves {folder}: use that one, end it, or choose another --data-dir"
        )
    return lock


class _Told(uvicorn.Server):
    """Tells when it serves, and when it begins to end."""

    def __init__(
        self, config: uvicorn.Config, on_started: Callable[[], None], on_ending: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._on_started, self._on_ending = on_started, on_ending

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self._on_started()

    async def shutdown(self, sockets: Any = None) -> None:
        self._on_ending()
        await super().shutdown(sockets)
