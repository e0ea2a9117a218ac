"""What a gateway serves: the rows of `published.py`, followed by `NOTIFY` and, where one is lost, by polling.

A gateway that is behind samples from the step before. That is recorded with the sample, so that nothing is
trained as if another step had drawn it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from typing import Any

from art.engine.base_models import local_folder
from art.engine.protocol import Deadlines
from art.engine.remote import RemoteEngine
from art.engine.replicas.pool import EnginePool, ReplicaWaits
from art.errors import ARTError, NotFoundError, WorkerDiedError
from art.process.imports import import_lock
from art.rendering.chat_renderer import ChatRenderer
from art.server.catalog import Catalog, Serving
from art.server.tenancy import Tenant, tenant_of
from art_extensions.postgres.database import Connection, PostgresDatabase, connect, known_errors
from art_extensions.postgres.published import (
    CHANNEL,
    EngineAddress,
    PublishedBase,
    PublishedModel,
    open_key,
    sealing_secret,
)

_log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
_UP_SECONDS = 20.0
"""Seconds that a request waits here for an engine; the controller says when it is back."""


@dataclass(slots=True)
class _FollowedBase:
    pool: EnginePool
    engines: dict[int, EngineAddress] = field(default_factory=dict)
    """Number of an engine -> its address, of those that were reached."""


class ServedFollower:
    """Keeps a gateway's catalog as the rows say. One event loop owns it."""

    def __init__(
        self, database: PostgresDatabase, catalog: Catalog, *, key: str, deadlines: Deadlines
    ) -> None:
        """key: the server's own, with which the controller sealed the engines' keys."""
        self._database, self._catalog = database, catalog
        self._secret, self._deadlines = sealing_secret(key), deadlines
        self._bases: dict[str, _FollowedBase] = {}
        self._models: dict[str, PublishedModel] = {}
        self._texts: dict[str, dict[str, str]] = {"served_bases": {}, "aliases": {}}
        self._news = asyncio.Event()
        self.controller: str | None = None
        """The address of the server that holds the lock."""

    def described(self) -> dict[str, Any]:
        """Returns what `/health` shows the operator."""
        engines = {name: len(base.engines) for name, base in self._bases.items()}
        return {"gateway": {"controller": self.controller, "engines": engines}}

    def is_sampled_here(self, asked: str, tenant: Tenant) -> bool:
        """Returns whether this gateway reaches an engine of the model that a request names."""
        if self._catalog.has_base(asked, tenant):
            return self._is_reached(self._catalog.base_of(asked).name)
        try:
            found = self._catalog.names.find(asked, tenant)
        except NotFoundError:  # in several projects: the controller says so
            return False
        model = None if found is None else self._models.get("/".join(found[0]))
        if found is None or model is None:
            return False
        _, step = found
        return (step is None or step in model.adapters) and self._is_reached(model.base_model)

    def _is_reached(self, base_model: str) -> bool:
        base = self._bases.get(base_model)
        return base is not None and bool(base.engines)

    async def run(self) -> None:
        """Follows until cancelled."""
        async with contextlib.AsyncExitStack() as stack:
            listening: Connection | None = None
            while True:
                if listening is None or listening.is_closed():
                    listening = await self._listen(stack)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await self._news.wait()
                self._news.clear()
                try:
                    await self.refresh()
                except ARTError as error:
                    _log.warning("this gateway goes on with what it knows: %s", error)

    async def refresh(self) -> None:
        """Reads the rows, and serves what they say. Raises: DatabaseError."""
        ((url,),) = await self._database.rows("SELECT url FROM controller")
        self.controller = url or None
        bases = dict(await self._database.rows("SELECT name, body FROM served_bases"))
        aliases = dict(await self._database.rows("SELECT name, body FROM aliases"))
        for name, body in bases.items():
            base = self._bases.get(name)
            published = PublishedBase.model_validate_json(body)
            if body != self._texts["served_bases"].get(name) or (
                base is not None and len(base.engines) < len(published.engines)
            ):
                await self._follow_base(name, published)
        for name in self._bases.keys() - bases.keys():
            await self._lose_engines(self._bases[name], {})
        self._texts["served_bases"] = bases
        for name in [known for known in self._models if known not in aliases]:
            gone = self._models.pop(name)
            self._catalog.remove(gone.project, gone.name)
        for name, body in aliases.items():
            model = PublishedModel.model_validate_json(body)
            if model.base_model in self._bases and (
                name not in self._models or body != self._texts["aliases"].get(name)
            ):
                self._follow_model(name, model)
        self._texts["aliases"] = aliases
        self._mark_adapters()

    async def close(self) -> None:
        """Ends the connections to the engines."""
        for base in self._bases.values():
            await base.pool.close()

    async def _listen(self, stack: contextlib.AsyncExitStack) -> Connection | None:
        try:
            connection = await connect(self._database.address)
            stack.callback(connection.terminate)
            await connection.add_listener(CHANNEL, self._wake_up)
        except known_errors() as error:
            why = self._database.address.hide_password(str(error))
            _log.warning("this gateway polls for changes: Postgres does not notify it (%s)", why)
            return None
        return connection

    def _wake_up(self, *_: Any) -> None:
        self._news.set()

    async def _follow_base(self, name: str, published: PublishedBase) -> None:
        base = self._bases.get(name)
        if base is None or len(base.pool.replicas) != published.replicas:
            renderer = await asyncio.to_thread(_create_renderer, name)
            base = _FollowedBase(EnginePool(published.replicas, waits=ReplicaWaits(up=_UP_SECONDS)))
            self._catalog.add_base(
                name, base.pool, renderer, max_context=published.max_context, aliases=published.aliases
            )
            self._bases[name] = base
        addresses = {one.number: one for one in published.engines}
        await self._lose_engines(base, addresses)
        for number, address in addresses.items():
            if base.engines.get(number) != address:
                await self._reach(base, address)

    async def _reach(self, base: _FollowedBase, address: EngineAddress) -> None:
        try:
            key = open_key(self._secret, address.url, address.sealed_key)
            await base.pool.join(address.number, RemoteEngine(address.url, key, self._deadlines))
        except ARTError as error:
            _log.warning("the engine at %s is not reached from here: %s", address.url, error)
        else:
            base.engines[address.number] = address

    async def _lose_engines(self, base: _FollowedBase, now: dict[int, EngineAddress]) -> None:
        for number in [one for one, address in base.engines.items() if now.get(one) != address]:
            del base.engines[number]
            base.pool.give_up(number, WorkerDiedError("the controller does not name this engine any more"))

    def _follow_model(self, name: str, model: PublishedModel) -> None:
        renderer = self._catalog.base_of(model.base_model).renderer.with_arguments(
            model.chat_template_kwargs,
            template=model.chat_template,
            special_tokens_in_text=model.special_tokens_in_text,
            tool_format=model.tool_format,
        )
        if tenant_of(model.project) is not None:
            renderer = renderer.confined()
        project = model.project
        self._catalog.serve_as(project, model.name, Serving(renderer=renderer, max_context=model.max_context))
        newest = model.adapters.get(model.newest)
        loaded = self._catalog.loaded_steps(project, model.name)
        for step, adapter in model.adapters.items():
            if step != model.newest and (step not in loaded or loaded[step] != adapter):
                self._catalog.publish(project, model.name, model.base_model, step, adapter)
        self._catalog.publish(project, model.name, model.base_model, model.newest, newest)
        for step in self._catalog.loaded_steps(project, model.name).keys() - model.adapters.keys():
            self._catalog.retire(project, model.name, step)
        self._models[name] = model

    def _mark_adapters(self) -> None:
        """Every engine that the controller names has every adapter that it names."""
        for name, base in self._bases.items():
            adapters = {
                adapter
                for model in self._models.values()
                if model.base_model == name
                for adapter in model.adapters.values()
                if adapter is not None
            }
            for replica in base.pool.replicas:
                replica.adapters = set(adapters)


def _create_renderer(base_model: str) -> ChatRenderer:
    with import_lock:
        from art.rendering.registry import create_chat_renderer  # slow, and in a thread

    return create_chat_renderer(local_folder(base_model), name=base_model)
