"""What several servers share: ledger, jobs, and which of them is the controller. An extension gives it.

    store = await open_store("postgresql://art@db/art", ended)      waits until this server is the controller
    async with open_gateway(settings, key) as rooms: ...            a server that samples by another's engines

A server without one has SQLite in its data folder, and nobody takes over from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from art.errors import ARTError, ConfigurationError
from art.extensions import STORE, extension_points, load_extension
from art.process.running_server import RunningServer
from art.server.app import App
from art.server.catalog import Catalog
from art.server.checkpoints.registered_models import RegisteredModels
from art.server.jobs.job_table import JobTable
from art.server.ledger.face import SampleLedger
from art.server.settings import ServerSettings, resolve_database

DEFAULT = "postgresql"
"""Reads an address whose scheme no extension has, and says what is wrong with it."""
RunningEngines = Mapping[str, tuple[int, Sequence[tuple[int, str, str]]]]
"""Base model -> how many replicas it has, and of those that answer their number, URL and key."""


class LostControlError(ARTError):
    """Another server is the controller now: what this one wanted to commit is not committed."""


@dataclass(kw_only=True)
class ServedRooms:
    """The application that answers, and what is done meanwhile until the server ends."""

    app: App
    answer: Any
    """The ASGI application in front."""
    background: Callable[[RunningServer], list[Coroutine[Any, Any, None]]]
    """Begun when it is known where the server listens."""
    is_announced: bool = True
    """Whether programs of this machine find it by the data folder."""
    lost: asyncio.Event | None = None
    """Set when it may serve no longer."""


class SharedStore(Protocol):
    """The store of a server that is the controller."""

    @property
    def shown(self) -> str:
        """Returns the address, without a password."""
        ...

    @property
    def control_lost(self) -> asyncio.Event:
        """Returns the event that is set once this server is not known to be the controller any more."""
        ...

    async def require_control(self) -> None:
        """Raises LostControlError where this server may commit nothing any more."""
        ...

    async def publish(
        self,
        url: str,
        *,
        key: str,
        catalog: Catalog,
        models: RegisteredModels,
        engines: Callable[[], RunningEngines],
    ) -> None:
        """Tells the gateways where this server is and what it serves, until cancelled. Raises: ARTError."""
        ...

    async def open_ledger(self, data_dir: Path) -> SampleLedger:
        """Raises: ARTError."""
        ...

    async def open_jobs(self) -> JobTable:
        """Raises: ARTError."""
        ...

    def stored_rows(self, data_dir: Path) -> Any:
        """Returns what reads for the pages of the runs."""
        ...

    def described(self) -> dict[str, Any]:
        """Returns what `/health` shows the operator."""
        ...

    async def close(self) -> None:
        """Lets the next server be the controller."""
        ...


class StoreExtension(Protocol):
    """The extension of the kind `store` behind a scheme of addresses."""

    async def open_shared(self, url: str, ended: asyncio.Future[None] | None) -> SharedStore | None:
        """Returns the store once this server is the controller; None where it was asked to end meanwhile.

        ended: done when the server was asked to end. Raises: ARTError.
        """
        ...

    def open_gateway(
        self, url: str, settings: ServerSettings, key: str
    ) -> AbstractAsyncContextManager[ServedRooms]:
        """Opens a server that samples from the controller's engines, and passes on what it cannot answer."""
        ...

    def open_recorded(self, url: str, data_dir: Path) -> AbstractAsyncContextManager[SampleLedger]:
        """Opens what is stored for reading alone; the ledger's `rows` are those of the jobs, too."""
        ...


async def open_store(settings: ServerSettings, ended: asyncio.Future[None] | None) -> SharedStore | None:
    """Returns the store of the settings once this server is the controller; None where they name none.

    Raises: ConfigurationError, ARTError.
    """
    url = resolve_database(settings)
    return None if url is None else await _extension_of(url).open_shared(url, ended)


def open_gateway(settings: ServerSettings, key: str) -> AbstractAsyncContextManager[ServedRooms]:
    """Opens a gateway. Raises: ConfigurationError where the settings name no store."""
    url = resolve_database(settings)
    if url is None:
        raise ConfigurationError(
            "role 'gateway' needs the database of its controller: set ART_DATABASE_URL, or `--database`"
        )
    return _extension_of(url).open_gateway(url, settings, key)


def open_recorded(url: str, data_dir: Path) -> AbstractAsyncContextManager[SampleLedger]:
    """Opens what a store has, for reading alone. Raises: ARTError."""
    return _extension_of(url).open_recorded(url, data_dir)


def _extension_of(url: str) -> StoreExtension:
    try:
        scheme = urlsplit(url).scheme
    except ValueError:  # the extension says what is wrong, without the password
        scheme = DEFAULT
    found: StoreExtension = load_extension(STORE, scheme if scheme in extension_points(STORE) else DEFAULT)
    return found
