"""Scoped rollouts: programs that are not wrapped get an address and a key for one rollout, and what was said
through them is kept.

`ScopedRollout` knows which names mean its model and until when it is open; `scoped_request` is what its key
opens; `ExchangeRecords` are the rows of what was said, each request's new messages alone, so that a long
conversation costs its length once; `ScopedRollouts` opens, finds, reads, closes and forgets.

Rollouts that are not forgotten are all in memory, so that finding one is a look into a dict. Their texts are
on disk alone, committed with their samples; they are forgotten an hour after the rollout was closed, or a day
after it expired. The samples stay.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import orjson

from art.errors import NotFoundError, RequestError
from art.process.steady_time import steady_time
from art.server.catalog import Catalog, Target, normalize_step_name
from art.server.chat.prompt_and_reply import Completion, finish_reason
from art.server.data_folder import check_name
from art.server.http import Scope
from art.server.ledger.face import SampleLedger
from art.server.ledger.schema import Statement
from art.server.tenancy import Tenant, external_name, internal_name
from art.server.tenants import RolloutKeys
from art.wire.records import Strict
from art.wire.rollouts import (
    ANY_NAME,
    RAW_ROLLOUT_HEADER,
    Exchange,
    ExchangeChoice,
    OpenRolloutRequest,
    RolloutExchanges,
    RolloutScope,
)

if TYPE_CHECKING:
    from art.server.chat.prompt_and_reply import PreparedRequest


class ScopeRecord(Strict):
    """The record of a scope on disk."""

    project: str
    """The internal name of the project."""
    name: str
    aliases: list[str]
    allow_base: bool
    step: int | None
    """The pinned step; None: the newest at each request."""


_ON_PURPOSE = "allow_base=True to sample from the base model on purpose"


@dataclass(kw_only=True, slots=True)
class ScopedRollout:
    """A rollout with a key of its own."""

    rollout_id: str
    tenant: Tenant
    record: ScopeRecord
    opened_at: float
    expires_at: float
    """Seconds of `steady_time`, as `closed_at`: no clock that is set closes a rollout."""
    closed_at: float | None = None
    text_bytes: int = 0
    """Texts kept so far."""
    taken_over: bool = False
    """An earlier server opened it, and this one has not served its model yet."""
    conversations: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    """Digest of a request's messages -> the request and the number of its messages."""

    @property
    def model(self) -> str:
        """The model's full name, in the words of who owns the rollout."""
        return f"{external_name(self.tenant, self.record.project)}/{self.record.name}"

    def described(self) -> str:
        """Returns its settings, in the names of its owner."""
        record = self.record
        return (
            f"{self.model!r}, aliases={record.aliases!r}, allow_base={record.allow_base}, step={record.step}"
        )

    def require_open(self) -> None:
        """Raises: RequestError (410) when its trajectory may already be in training."""
        if self.closed_at is not None:
            raise RequestError(
                f"rollout {self.rollout_id!r} is closed: its trajectory may already be trained. Ask inside "
                "of `art.rollout(...)`, or open another rollout",
                status=410,
                code="rollout_closed",
            )
        if steady_time() > self.expires_at:
            raise RequestError(
                f"rollout {self.rollout_id!r} has expired: give `art.rollout(..., expires_s=...)` more time",
                status=410,
                code="rollout_expired",
            )

    def listed_names(self) -> list[str]:
        """The names that mean its model here, as `GET /v1/models` shows them."""
        aliases = [alias for alias in self.record.aliases if alias != ANY_NAME]
        return list(dict.fromkeys([self.record.name, *aliases]))

    def name_meant(self, spelled_name: str, *, is_base: bool) -> str:
        """The served name that `spelled_name` stands for in this rollout. Raises: NotFoundError (404)."""
        record, pinned = self.record, "" if self.record.step is None else f"@{self.record.step}"
        spelled = normalize_step_name(spelled_name)
        plain, at, _ = spelled.rpartition("@")
        if spelled_name in (record.name, self.model):
            return self.model + pinned
        if at and plain in (record.name, self.model):
            return self.model + spelled[len(plain) :]
        if spelled_name in record.aliases:
            return self.model + pinned
        if is_base:
            if record.allow_base:
                return spelled_name
            raise self._unknown(spelled_name, "is a base model, which does not learn", _ON_PURPOSE)
        if ANY_NAME in record.aliases:
            return self.model + pinned
        raise self._unknown(
            spelled_name, "is not the model of this rollout", f"aliases=({ANY_NAME!r},) for any name"
        )

    def _unknown(self, spelled_name: str, why: str, more: str) -> NotFoundError:
        shown = spelled_name[:200]
        return NotFoundError(
            f"model {shown!r} {why}: ask for {self.model!r}, or let the name stand for it with "
            f"art.rollout(model, aliases=({shown!r},)), or {more}",
            status=404,
            code="model_not_found",
            param="model",
        )


ADDRESSED = "art.addressed_rollout"
"""The key of a request's scope with the rollout that its address names."""


def scoped_request(scope: Scope, rollout_id: str) -> Scope:
    """The request of a rollout's key, with the rollout's name on it whatever it says itself.

    Raises: RequestError (403) for another route, or for the address of another rollout.
    """
    method, path = scope["method"], scope["path"]
    inference = path.startswith(("/v1/", "/inference/v1/")) and method == "POST"
    looking = method == "GET" and (path == "/v1/models" or path.startswith("/v1/models/"))
    if not (inference or looking):
        raise RequestError(
            f"{method} {path}: the key of a rollout opens its completions alone (POST /v1/...)",
            status=403,
            code="rollout_key_not_enough",
        )
    addressed = scope.get(ADDRESSED)
    if addressed is not None and addressed != rollout_id:
        raise RequestError(
            f"the address names rollout {addressed!r}, but this is the key of {rollout_id!r}",
            status=403,
            code="rollout_key_mismatch",
        )
    headers: list[Any] = [pair for pair in scope["headers"] if pair[0] != RAW_ROLLOUT_HEADER]
    return {**scope, "headers": [(RAW_ROLLOUT_HEADER, rollout_id.encode("latin-1")), *headers]}


_DIGEST = 16
_INSERT_EXCHANGE = (
    "INSERT INTO exchanges (sample_id, tenant, rollout_id, request_id, extends, shared, size, said) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
SELECT_EXCHANGES = (
    "SELECT request_id, extends, shared, said, EXISTS (SELECT 1 FROM delivered d WHERE "
    "d.tenant = e.tenant AND d.rollout_id = e.rollout_id AND d.request_id = e.request_id) "
    "FROM exchanges e WHERE tenant = ? AND rollout_id = ? ORDER BY rowid"
)


class ExchangeRecords:
    """One commit's exchanges: `statements` go into the ledger with their samples, then `remember`."""

    def __init__(
        self,
        scoped: ScopedRollout,
        prepared: PreparedRequest,
        done: Sequence[tuple[Completion, dict[str, Any]]],
    ) -> None:
        self._scoped, self._prepared = scoped, prepared
        self._messages = prepared.request.messages or _as_message(prepared)
        self._digests = _prefix_digests(self._messages, prepared.request.tools_key)
        self.size = 0
        """Bytes of text, to be counted with the rollout's."""
        self.statements: list[Statement] = [
            self._statement(one, message, n) for n, (one, message) in enumerate(done)
        ]

    def remember(self) -> None:
        """Later requests that go on from these messages keep what is new alone."""
        self._scoped.conversations.setdefault(
            self._digests[-1], (self._prepared.request_id, len(self._messages))
        )

    def _statement(self, completion: Completion, message: dict[str, Any], place: int) -> Statement:
        prepared, scoped = self._prepared, self._scoped
        request = prepared.request
        extends, shared = self._longest_known()
        said = orjson.dumps(
            {
                "model": request.model,
                "messages": self._messages[shared:],
                # Tools are part of the digest: an exchange that is extended has the same.
                "tools": request.tools if extends is None else None,
                "parent_id": prepared.stitched.parent_id,
                "fork_reason": prepared.stitched.fork_reason,
                "created_at": prepared.created_at,
                "ended_at": time.time(),
                "prompt_tokens": len(prepared.stitched.prompt_ids),
                "choice": {
                    "sample_id": completion.sample_id,
                    "index": place,
                    "step": prepared.target.step,
                    "message": message,
                    "finish_reason": finish_reason(completion, message),
                    "completion_tokens": len(completion.token_ids),
                },
            }
        )
        self.size += len(said)
        values = (
            completion.sample_id,
            scoped.tenant or "",
            scoped.rollout_id,
            prepared.request_id,
            extends,
            shared,
            len(said),
            said,
        )
        return _INSERT_EXCHANGE, values

    def _longest_known(self) -> tuple[str | None, int]:
        for digest in reversed(self._digests):
            known = self._scoped.conversations.get(digest)
            if known is not None:
                return known
        return None, 0


def read_exchanges(rows: Sequence[tuple[Any, ...]]) -> list[Exchange]:
    """Rows of `SELECT_EXCHANGES` as exchanges, in the order in which they were asked."""
    found: dict[str, Exchange] = {}
    for request_id, extends, shared, said, delivered in rows:
        text = orjson.loads(said)
        choice = ExchangeChoice.model_validate(text["choice"])
        known = found.get(request_id)
        if known is not None:
            # Several choices of one request that ended one by one.
            known.choices.append(choice.model_copy(update={"index": len(known.choices)}))
            continue
        found[request_id] = Exchange(
            request_id=request_id,
            model=text["model"],
            extends=extends,
            shared=shared,
            messages=text["messages"],
            tools=text["tools"] if extends is None else found[extends].tools,
            choices=[choice],
            # Rows of an earlier server have none.
            parent_id=text.get("parent_id"),
            fork_reason=text["fork_reason"],
            delivered=bool(delivered),
            created_at=text["created_at"],
            ended_at=text.get("ended_at"),
            prompt_tokens=text.get("prompt_tokens"),
        )
    return sorted(found.values(), key=lambda exchange: exchange.created_at)


def _as_message(prepared: PreparedRequest) -> list[dict[str, Any]]:
    """A raw prompt (`/v1/completions`): a conversation of its own, its text as what the user said."""
    return [{"role": "user", "content": prepared.target.renderer.decode(prepared.stitched.prompt_ids)}]


def _prefix_digests(messages: Sequence[dict[str, Any]], tools_key: bytes) -> list[bytes]:
    """One digest for each beginning of the messages, all but the empty one; exact, unlike a turn's key."""
    chain = hashlib.blake2b(tools_key, digest_size=_DIGEST)
    digests = []
    for message in messages:
        spelled = orjson.dumps(message, option=orjson.OPT_SORT_KEYS)
        chain.update(b"%d:" % len(spelled))
        chain.update(spelled)
        digests.append(chain.digest())
    return digests


KEPT_CLOSED_S = 3600.0
KEPT_EXPIRED_S = 86_400.0
_SWEEP_S = 60.0
_SERVED_AGAIN_S = 120.0
_LOOK_S = 0.1

_OPEN = "INSERT INTO rollouts (tenant, rollout_id, scope, opened_at, expires_at) VALUES (?, ?, ?, ?, ?)"
_CLOSE = "UPDATE rollouts SET closed_at = ? WHERE tenant = ? AND rollout_id = ?"
_DELIVERED = "INSERT INTO delivered (tenant, rollout_id, request_id) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
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


class ScopedRollouts:
    """One event loop owns it. `load` before the first request."""

    def __init__(
        self, ledger: SampleLedger, catalog: Catalog, keys: RolloutKeys, *, largest_text: int
    ) -> None:
        self._ledger, self._catalog, self._keys = ledger, catalog, keys
        self._largest_text = largest_text
        self._known: dict[tuple[Tenant, str], ScopedRollout] = {}
        self._swept = steady_time()

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

    async def open(self, request: OpenRolloutRequest, tenant: Tenant) -> RolloutScope:
        """A rollout of a served model. Asked again, it is the same one.

        Raises: NotFoundError (no such model or step), RequestError (409: another rollout has the id; 410: it
        was closed).
        """
        if steady_time() - self._swept > _SWEEP_S:
            await self._sweep()
        record = await self._record(request, tenant)
        rollout_id = request.rollout_id or uuid4().hex
        known = self._known.get((tenant, rollout_id))
        if known is None:
            now = steady_time()
            known = ScopedRollout(
                rollout_id=rollout_id,
                tenant=tenant,
                record=record,
                opened_at=now,
                expires_at=now + request.expires_s,
            )
            self._known[tenant, rollout_id] = known
            scope = record.model_dump_json().encode()
            values = (tenant or "", rollout_id, scope, known.opened_at, known.expires_at)
            await self._ledger.writer.append([], [(_OPEN, values)])
        known.require_open()
        if not request.pinned and known.record != record:
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

    async def target_of(self, scoped: ScopedRollout, spelled_name: str) -> Target:
        """Returns the target of a name in a rollout. After a restart a request waits until its model is
        served.

        Raises: NotFoundError: another name, or a model that is not served in time.
        """
        tenant = scoped.tenant
        name = scoped.name_meant(spelled_name, is_base=self._catalog.has_base(spelled_name, tenant))
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
            self._ledger.writer.note([(_DELIVERED, (tenant or "", rollout_id, request_id))])

    async def exchanges(self, rollout_id: str, tenant: Tenant) -> RolloutExchanges:
        """Returns the requests and answers so far. Raises: NotFoundError."""
        scoped = self.require(rollout_id, tenant)
        values = (tenant or "", rollout_id)
        await self._ledger.writer.append([])  # what was noted before is committed
        exchanges = read_exchanges(await self._ledger.rows(SELECT_EXCHANGES, values))
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
            scoped.closed_at = steady_time()
            scoped.conversations.clear()
        await self._ledger.writer.append([], [(_CLOSE, (scoped.closed_at, tenant or "", rollout_id))])
        return await self.exchanges(rollout_id, tenant)

    async def forget(self, rollout_id: str, tenant: Tenant) -> None:
        """Close it and drop its texts. Raises: NotFoundError."""
        scoped = self.require(rollout_id, tenant)
        scoped.closed_at = scoped.closed_at or steady_time()
        await self._ledger.writer.append([], _delete_statements(scoped))
        self._known.pop((tenant, rollout_id), None)

    async def _record(self, request: OpenRolloutRequest, tenant: Tenant) -> ScopeRecord:
        check_name("project", request.project)
        check_name("name", request.name)
        wanted = f"{request.project}/{request.name}" + ("" if request.step is None else f"@{request.step}")
        target = await self._catalog.resolve(wanted, tenant)
        return ScopeRecord(
            project=internal_name(tenant, request.project),
            name=request.name,
            aliases=request.aliases,
            allow_base=request.allow_base,
            step=target.step if request.pinned else request.step,
        )

    async def _sweep(self) -> None:
        self._swept = now = steady_time()
        old = [
            scoped
            for scoped in self._known.values()
            if now > scoped.expires_at + KEPT_EXPIRED_S
            or (scoped.closed_at is not None and now > scoped.closed_at + KEPT_CLOSED_S)
        ]
        for scoped in old:
            del self._known[scoped.tenant, scoped.rollout_id]
        if old:
            await self._ledger.writer.append(
                [], [statement for scoped in old for statement in _delete_statements(scoped)]
            )


def _delete_statements(scoped: ScopedRollout) -> list[Statement]:
    return [(text, (scoped.tenant or "", scoped.rollout_id)) for text in _FORGET]
