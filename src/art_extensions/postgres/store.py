"""Postgres as the store that several servers share: the extension of the kind `store`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

from art.engine.protocol import Deadlines
from art.engine.registry import masked_by
from art.server.app import App
from art.server.catalog import Catalog
from art.server.ledger.face import SampleLedger
from art.server.ledger.stitching import Stitcher
from art.server.process import with_origins
from art.server.settings import ServerSettings
from art.server.shared_store import ServedRooms
from art.server.tenants import TENANTS_FILE, KeyCheck, TenantKeys
from art_extensions.postgres.followed import ServedFollower
from art_extensions.postgres.front import GatewayFront
from art_extensions.postgres.samples import PostgresLedger
from art_extensions.postgres.shared import (
    SharedDatabase,
    open_gateway_database,
    open_recorded_ledger,
    open_shared,
)


class PostgresStore:
    """A store of the core, in Postgres (`art.server.shared_store.StoreExtension`)."""

    async def open_shared(self, url: str, ended: asyncio.Future[None] | None) -> SharedDatabase | None:
        """See `StoreExtension.open_shared`."""
        return await open_shared(url, ended)

    def open_gateway(
        self, url: str, settings: ServerSettings, key: str
    ) -> AbstractAsyncContextManager[ServedRooms]:
        """See `StoreExtension.open_gateway`."""
        return _open_gateway(url, settings, key)

    def open_recorded(self, url: str, data_dir: Path) -> AbstractAsyncContextManager[SampleLedger]:
        """See `StoreExtension.open_recorded`."""
        return open_recorded_ledger(url, data_dir)


POSTGRES = PostgresStore()


@asynccontextmanager
async def _open_gateway(url: str, settings: ServerSettings, key: str) -> AsyncIterator[ServedRooms]:
    """A server that samples from the controller's engines, and passes on what it cannot answer."""
    async with open_gateway_database(url) as database, AsyncExitStack() as rooms:
        ledger = await PostgresLedger.open(database, settings.data_dir)
        rooms.push_async_callback(ledger.close)
        catalog = Catalog()
        follower = ServedFollower(database, catalog, key=key, deadlines=Deadlines())
        rooms.push_async_callback(follower.close)
        await follower.refresh()
        tenants = TenantKeys(settings.server_dir / TENANTS_FILE)
        app = App(
            key=key,
            catalog=catalog,
            ledger=ledger,
            stitcher=Stitcher(ledger, max_tokens=settings.limits.remembered_tokens, ledger_is_empty=False),
            limits=settings.limits,
            tenants=tenants,
            control_health=follower.described,
            masked_by=masked_by(settings.engine.name, settings.engine.options),
        )
        front = GatewayFront(
            with_origins(app, settings.allow_origins),
            keys=KeyCheck(key, tenants),
            follower=follower,
            database=database,
            largest_body=settings.limits.max_body_bytes,
            bodies=app.bodies,
        )
        rooms.push_async_callback(front.close)
        yield ServedRooms(
            app=app, answer=front, background=lambda running: [follower.run()], is_announced=False
        )
