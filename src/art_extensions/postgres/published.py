"""What the controller tells the gateways, in rows: where each engine is, and which step each name means.

    served_bases   name -> context, aliases, and of each engine its address with its key, sealed
    aliases        project/name -> base model, newest step, loaded adapters, chat format
    controller     the address of the server that holds the lock

Each change is one transaction with a `NOTIFY`, written only by the server that holds the lock. The key of an
engine is sealed with the server's own key, which every gateway has and the database has not: who reads the
database can ask no engine.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import Field

from art.engine.base_models import resolve_base
from art.errors import ARTError, ConfigurationError
from art.server.catalog import Catalog
from art.server.checkpoints.registered_models import RegisteredModels
from art.server.shared_store import LostControlError, RunningEngines
from art.wire.records import Strict
from art_extensions.postgres.database import Connection, PostgresDatabase
from art_extensions.postgres.gateways import ControllerLock, require_epoch

_log = logging.getLogger(__name__)

CHANNEL = "art_served"
_VERSION = 1
_CREATE = """
CREATE TABLE served_bases (name TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE aliases (name TEXT PRIMARY KEY, body TEXT NOT NULL);
"""
_LOOK_SECONDS = 0.5
"""Seconds until a restarted engine is published; a name that moves is published at once."""
_AGAIN_SECONDS = 2.0
_NONCE = 12


class EngineAddress(Strict):
    """One engine."""

    number: int
    url: str
    sealed_key: str


class PublishedBase(Strict):
    """A base model that is served."""

    aliases: list[str]
    max_context: int
    replicas: int
    engines: list[EngineAddress]
    """The engines that answer now; none while they sleep."""


class PublishedModel(Strict):
    """A model, and the step that its name means."""

    project: str
    name: str
    base_model: str
    newest: int
    adapters: dict[int, str | None]
    max_context: int | None
    chat_template: str | None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    special_tokens_in_text: Literal["text", "parse"]
    tool_format: Literal["auto", "template"] = "auto"


async def prepare_published(database: PostgresDatabase) -> None:
    """Raises: ConfigurationError, DatabaseError."""
    await database.prepare_tables("served", _VERSION, _CREATE)


class Publisher:
    """Writes what changed, while this server is the controller."""

    def __init__(
        self,
        database: PostgresDatabase,
        lock: ControllerLock,
        url: str,
        *,
        key: str,
        catalog: Catalog,
        models: RegisteredModels,
        engines: Callable[[], RunningEngines],
    ) -> None:
        """url: of this server, for the gateways. key: the server's own, which seals those of the engines."""
        self._url = url
        self._lane, self._lock, self._secret = database.lane(), lock, sealing_secret(key)
        self._catalog, self._models, self._engines = catalog, models, engines
        self._written: dict[str, dict[str, str]] | None = None
        self._sealed: dict[tuple[str, str], str] = {}

    async def run(self) -> None:
        """Publishes until cancelled, or until another server is the controller."""
        while True:
            self._catalog.changed.clear()
            try:
                await self.publish()
                pause = _LOOK_SECONDS
            except LostControlError:
                return
            except ARTError as error:
                _log.warning("the gateways are not notified of what is served: %s", error)
                pause = _AGAIN_SECONDS
            try:
                async with asyncio.timeout(pause):
                    await self._catalog.changed.wait()
            except TimeoutError:
                continue

    async def publish(self) -> None:
        """Writes what differs from what was written last. Raises: LostControlError, DatabaseError."""
        now = {"served_bases": self._bases(), "aliases": self._aliases()}
        before = self._written
        if now == before:
            return

        async def work(connection: Connection) -> None:
            await require_epoch(connection, self._lock.epoch)
            for table, rows in now.items():
                await _write_rows(connection, table, rows, None if before is None else before[table])
            await connection.execute("UPDATE controller SET url = $1", self._url)
            await connection.execute("SELECT pg_notify($1, '')", CHANNEL)

        self._written = None  # what is there is not known until this is committed
        await self._lane.commit(work)
        self._written = now

    async def close(self) -> None:
        """Ends the connection."""
        await self._lane.close()

    def _bases(self) -> dict[str, str]:
        found = {}
        for name, (replicas, running) in self._engines().items():
            if self._catalog.has_base(name):
                base = PublishedBase(
                    aliases=list(resolve_base(name).aliases),
                    max_context=self._catalog.base_of(name).max_context,
                    replicas=replicas,
                    engines=[
                        EngineAddress(number=number, url=url, sealed_key=self._seal(url, key))
                        for number, url, key in running
                    ],
                )
                found[name] = base.model_dump_json()
        return found

    def _aliases(self) -> dict[str, str]:
        found = {}
        for project, name, base_model, newest in self._catalog.newest_steps():
            model = self._models.find(project, name)
            if model is not None:
                alias = PublishedModel(
                    project=project,
                    name=name,
                    base_model=base_model,
                    newest=newest,
                    adapters=self._catalog.loaded_steps(project, name),
                    max_context=model.max_context,
                    chat_template=model.chat_template,
                    chat_template_kwargs=model.chat_template_kwargs,
                    special_tokens_in_text=model.special_tokens_in_text,
                    tool_format=model.tool_format,
                )
                found[model.key] = alias.model_dump_json()
        return found

    def _seal(self, url: str, key: str) -> str:
        """Once for each engine: a seal is new each time, and what is new is written."""
        return self._sealed.setdefault((url, key), seal_key(self._secret, url, key))


async def _write_rows(
    connection: Connection, table: str, rows: Mapping[str, str], before: Mapping[str, str] | None
) -> None:
    if before is None:
        await connection.execute(f"DELETE FROM {table} WHERE name <> ALL($1)", list(rows))
    else:
        gone = [name for name in before if name not in rows]
        await connection.execute(f"DELETE FROM {table} WHERE name = ANY($1)", gone)
    new = [(name, body) for name, body in rows.items() if before is None or before.get(name) != body]
    upsert = f"INSERT INTO {table} VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET body = $2"
    await connection.executemany(upsert, new)


def sealing_secret(key: str) -> bytes:
    """Returns a secret of the server's key that serves no other purpose."""
    return hmac.digest(key.encode(), b"art: engines' keys in the database", hashlib.sha256)


def seal_key(secret: bytes, url: str, key: str) -> str:
    """An engine's key as it may stand in the database: AES-GCM under the secret, for this address alone."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # of the extra `postgres`

    nonce = secrets.token_bytes(_NONCE)
    return b64encode(nonce + AESGCM(secret).encrypt(nonce, key.encode(), url.encode())).decode()


def open_key(secret: bytes, url: str, sealed: str) -> str:
    """The engine's key. Raises: ConfigurationError when it was sealed with another server's key."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    raw = b64decode(sealed)
    try:
        return AESGCM(secret).decrypt(raw[:_NONCE], raw[_NONCE:], url.encode()).decode()
    except (InvalidTag, ValueError) as error:
        raise ConfigurationError(
            f"the key of the engine at {url} was sealed by a server with another key: start gateways and "
            "controllers with the same ART_API_KEY"
        ) from error
