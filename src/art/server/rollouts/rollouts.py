"""The scoped rollouts of a server: opened, found by each of their requests, read, closed and forgotten.

Those that are not forgotten are all in memory, so that finding one is a look into a dict. Their texts are on
disk alone, committed with their samples; they are forgotten an hour after the rollout was closed, or a day
after it expired. The samples stay.
"""

from __future__ import annotations

import asyncio
import time
from uuid import uuid4

from art.errors import NotFoundError, RequestError
from art.server.data_layout import check_name
from art.server.ledger.ledger import Ledger
from art.server.ledger.schema import Statement
from art.server.models.catalog import Catalog
from art.server.models.served import Target
from art.server.rollouts.exchanges import SELECT, read_exchanges
from art.server.rollouts.keys import RolloutKeys
from art.server.rollouts.scope import ScopedRollout, ScopeRecord
from art.server.tenants.tenancy import Tenant, inside
from art.wire.rollouts import OpenRolloutRequest, RolloutExchanges, RolloutScope

KEPT_CLOSED_S = 3600.0
KEPT_EXPIRED_S = 86_400.0
_SWEEP_S = 60.0
_SERVED_AGAIN_S = 120.0
_LOOK_S = 0.1

_OPEN = "INSERT INTO rollouts (tenant, rollout_id, scope, opened_at, expires_at) VALUES (?, ?, ?, ?, ?)"
_CLOSE = "UPDATE rollouts SET closed_at = ? WHERE tenant = ? AND rollout_id = ?"
_DELIVERED = "INSERT OR IGNORE INTO delivered (tenant, rollout_id, request_id) VALUES (?, ?, ?)"
_FORGET = (
    "DELETE FROM delivered WHERE tenant = ? AND rollout_id = ?",
    "DELETE FROM exchanges WHERE tenant = ? AND rollout_id = ?",
    "DELETE FROM rollouts WHERE tenant = ? AND rollout_id = ?",
)
_LOAD = """
SELECT tenant, rollout_id, scope, opened_at, expires_at, closed_at,
    (SELECT COALESCE(SUM(size), 0) FROM exchanges e
     WHERE e.tenant = r.tenant AND e.rollout_id = r.rollout_id)
FROM rollouts r
"""
_UNLISTED = """
SELECT COUNT(*) FROM samples s WHERE rollout_id = ?2 AND COALESCE(tenant, '') = ?1
AND NOT EXISTS (SELECT 1 FROM exchanges e WHERE e.sample_id = s.sample_id)
"""


class Rollouts:
    """One event loop owns it. `load` before the first request."""

    def __init__(self, ledger: Ledger, catalog: Catalog, keys: RolloutKeys, *, largest_text: int) -> None:
        self._ledger, self._catalog, self._keys = ledger, catalog, keys
        self._largest_text = largest_text
        self._known: dict[tuple[Tenant, str], ScopedRollout] = {}
        self._swept = time.time()

    async def load(self) -> None:
        """Take over the rollouts that an earlier server left open."""
        for tenant, rollout_id, scope, opened, expires, closed, size in await self._ledger.rows(_LOAD):
            self._known[tenant or None, rollout_id] = ScopedRollout(
                rollout_id=rollout_id,
                tenant=tenant or None,
                record=ScopeRecord.model_validate_json(scope),
                opened_at=opened,
                expires_at=expires,
                closed_at=closed,
                text_bytes=size,
                taken_over=True,
            )
        await self._sweep()

    async def open(self, asked: OpenRolloutRequest, tenant: Tenant) -> RolloutScope:
        """A rollout of a served model. Asked again, it is the same one.

        Raises: NotFoundError (no such model or step), RequestError (409: another rollout has the id; 410: it
        was closed).
        """
        if time.time() - self._swept > _SWEEP_S:
            await self._sweep()
        record = await self._record(asked, tenant)
        rollout_id = asked.rollout_id or uuid4().hex
        known = self._known.get((tenant, rollout_id))
        if known is None:
            now = time.time()
            known = ScopedRollout(
                rollout_id=rollout_id,
                tenant=tenant,
                record=record,
                opened_at=now,
                expires_at=now + asked.expires_s,
            )
            self._known[tenant, rollout_id] = known
            scope = record.model_dump_json().encode()
            values = (tenant or "", rollout_id, scope, known.opened_at, known.expires_at)
            await self._ledger.append([], [(_OPEN, values)])
        known.require_open()
        if not asked.pinned and known.record != record:
            raise RequestError(
                f"rollout {rollout_id!r} is open with other settings ({known.described()}): choose another "
                "id",
                status=409,
                code="rollout_exists",
                param="rollout_id",
            )
        return RolloutScope(
            rollout_id=rollout_id,
            path=f"/r/{rollout_id}",
            api_key=self._keys.issue(tenant, rollout_id),
            model=known.model,
            expires_at=known.expires_at,
        )

    def open_one(self, rollout_id: str, tenant: Tenant) -> ScopedRollout | None:
        """The scoped rollout that a request belongs to; None for one that is not scoped.

        Raises: RequestError: 410 when it is closed or expired, 413 when it has said too much.
        """
        scoped = self._known.get((tenant, rollout_id))
        if scoped is None:
            return None
        scoped.require_open()
        if scoped.text_bytes > self._largest_text:
            raise RequestError(
                f"rollout {rollout_id!r} has {scoped.text_bytes} bytes of text, more than the "
                f"{self._largest_text} of limits.rollout_text_bytes: close it, or raise the limit",
                status=413,
                code="rollout_full",
            )
        return scoped

    async def target_of(self, scoped: ScopedRollout, asked: str) -> Target:
        """What answers to a name in a rollout. After a restart a request waits until its model is served.

        Raises: NotFoundError: another name, or a model that is not served in time.
        """
        tenant = scoped.tenant
        name = scoped.name_meant(asked, is_base=self._catalog.has_base(asked, tenant))
        until = time.monotonic() + _SERVED_AGAIN_S
        while True:
            try:
                target = await self._catalog.resolve(name, tenant)
            except NotFoundError:
                if not scoped.taken_over or time.monotonic() > until:
                    raise
                await asyncio.sleep(_LOOK_S)
            else:
                scoped.taken_over = False
                return target

    def require(self, rollout_id: str, tenant: Tenant) -> ScopedRollout:
        """The rollout of this id, open or closed. Raises: NotFoundError."""
        scoped = self._known.get((tenant, rollout_id))
        if scoped is None:
            raise NotFoundError(
                f"no scoped rollout {rollout_id!r}: it was never opened here, or its texts are forgotten "
                f"({KEPT_CLOSED_S:g} s after it was closed)",
                status=404,
                code="rollout_not_found",
            )
        return scoped

    def note_delivered(self, rollout_id: str, tenant: Tenant, request_id: str) -> None:
        """The reply of a request was sent to its end; of a rollout that is not scoped nothing is noted."""
        scoped = self._known.get((tenant, rollout_id))
        if scoped is not None and scoped.closed_at is None:
            self._ledger.note([(_DELIVERED, (tenant or "", rollout_id, request_id))])

    async def exchanges(self, rollout_id: str, tenant: Tenant) -> RolloutExchanges:
        """What was said in it so far. Raises: NotFoundError."""
        scoped = self.require(rollout_id, tenant)
        values = (tenant or "", rollout_id)
        await self._ledger.append([])  # what was noted before is committed
        exchanges = read_exchanges(await self._ledger.rows(SELECT, values))
        ((unlisted,),) = await self._ledger.rows(_UNLISTED, values)
        forks: dict[str, int] = {}
        for exchange in exchanges:
            if exchange.fork_reason is not None:
                forks[exchange.fork_reason] = forks.get(exchange.fork_reason, 0) + 1
        return RolloutExchanges(
            rollout_id=rollout_id,
            project=scoped.record.project,
            name=scoped.record.name,
            closed=scoped.closed_at is not None,
            exchanges=exchanges,
            forks=forks,
            unlisted_samples=unlisted,
        )

    async def close(self, rollout_id: str, tenant: Tenant) -> RolloutExchanges:
        """Refuse what comes from now on, and tell what was said. Safe to ask twice. Raises: NotFoundError."""
        scoped = self.require(rollout_id, tenant)
        if scoped.closed_at is None:
            # At once in memory: a completion that ends from here on is not kept. What was handed to the
            # ledger before is committed before this is.
            scoped.closed_at = time.time()
            scoped.conversations.clear()
        await self._ledger.append([], [(_CLOSE, (scoped.closed_at, tenant or "", rollout_id))])
        return await self.exchanges(rollout_id, tenant)

    async def forget(self, rollout_id: str, tenant: Tenant) -> None:
        """Close it and drop its texts. Raises: NotFoundError."""
        scoped = self.require(rollout_id, tenant)
        scoped.closed_at = scoped.closed_at or time.time()
        await self._ledger.append([], _forgetting(scoped))
        self._known.pop((tenant, rollout_id), None)

    async def _record(self, asked: OpenRolloutRequest, tenant: Tenant) -> ScopeRecord:
        check_name("project", asked.project)
        check_name("name", asked.name)
        wanted = f"{asked.project}/{asked.name}" + ("" if asked.step is None else f"@{asked.step}")
        target = await self._catalog.resolve(wanted, tenant)
        return ScopeRecord(
            project=inside(tenant, asked.project),
            name=asked.name,
            aliases=asked.aliases,
            allow_base=asked.allow_base,
            step=target.step if asked.pinned else asked.step,
        )

    async def _sweep(self) -> None:
        self._swept = now = time.time()
        old = [
            scoped
            for scoped in self._known.values()
            if now > scoped.expires_at + KEPT_EXPIRED_S
            or (scoped.closed_at is not None and now > scoped.closed_at + KEPT_CLOSED_S)
        ]
        for scoped in old:
            del self._known[scoped.tenant, scoped.rollout_id]
        if old:
            await self._ledger.append([], [statement for scoped in old for statement in _forgetting(scoped)])


def _forgetting(scoped: ScopedRollout) -> list[Statement]:
    return [(text, (scoped.tenant or "", scoped.rollout_id)) for text in _FORGET]
