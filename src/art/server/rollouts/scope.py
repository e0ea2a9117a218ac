"""One scoped rollout: which names mean its model, until when it is open, and what of its text is known."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from art.errors import NotFoundError, RequestError
from art.server.models.served_names import at_step
from art.server.tenants.tenancy import Tenant, outside
from art.wire.rollouts import ANY_NAME
from art.wire.strict import Strict


class ScopeRecord(Strict):
    """What is kept of a scope on disk."""

    project: str
    """As it is inside."""
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
    """Unix seconds."""
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
        return f"{outside(self.tenant, self.record.project)}/{self.record.name}"

    def described(self) -> str:
        """Its settings, in the words of who owns it."""
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
        if time.time() > self.expires_at:
            raise RequestError(
                f"rollout {self.rollout_id!r} has expired: give `art.rollout(..., expires_s=...)` more time",
                status=410,
                code="rollout_expired",
            )

    def listed_names(self) -> list[str]:
        """The names that mean its model here, as `GET /v1/models` shows them."""
        aliases = [alias for alias in self.record.aliases if alias != ANY_NAME]
        return list(dict.fromkeys([self.record.name, *aliases]))

    def name_meant(self, asked: str, *, is_base: bool) -> str:
        """The served name that `asked` stands for in this rollout. Raises: NotFoundError (404)."""
        record, pinned = self.record, "" if self.record.step is None else f"@{self.record.step}"
        spelled = at_step(asked)
        plain, at, _ = spelled.rpartition("@")
        if asked in (record.name, self.model):
            return self.model + pinned
        if at and plain in (record.name, self.model):
            return self.model + spelled[len(plain) :]
        if asked in record.aliases:
            return self.model + pinned
        if is_base:
            if record.allow_base:
                return asked
            raise self._unknown(asked, "is a base model, which does not learn", _ON_PURPOSE)
        if ANY_NAME in record.aliases:
            return self.model + pinned
        raise self._unknown(
            asked, "is not the model of this rollout", f"aliases=({ANY_NAME!r},) for any name"
        )

    def _unknown(self, asked: str, why: str, more: str) -> NotFoundError:
        shown = asked[:200]
        return NotFoundError(
            f"model {shown!r} {why}: ask for {self.model!r}, or let the name stand for it with "
            f"art.rollout(model, aliases=({shown!r},)), or {more}",
            status=404,
            code="model_not_found",
            param="model",
        )
