"""What was said in a scoped rollout, as rows: each request's new messages alone, so that a long conversation
costs its length once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson

from art.server.dialects.chat_reply import Completion, finish_reason
from art.server.ledger.schema import Statement
from art.server.rollouts.scope import ScopedRollout
from art.wire.rollouts import Exchange, ExchangeChoice

if TYPE_CHECKING:
    from art.server.dialects.chat_prepared import Prepared

_DIGEST = 16
_INSERT = (
    "INSERT INTO exchanges (sample_id, tenant, rollout_id, request_id, extends, shared, size, said) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
SELECT = (
    "SELECT request_id, extends, shared, said, EXISTS (SELECT 1 FROM delivered d WHERE "
    "d.tenant = e.tenant AND d.rollout_id = e.rollout_id AND d.request_id = e.request_id) "
    "FROM exchanges e WHERE tenant = ? AND rollout_id = ? ORDER BY rowid"
)


class Told:
    """One commit's exchanges: `statements` go into the ledger with their samples, then `remember`."""

    def __init__(
        self, scoped: ScopedRollout, prepared: Prepared, done: Sequence[tuple[Completion, dict[str, Any]]]
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
        return _INSERT, values

    def _longest_known(self) -> tuple[str | None, int]:
        for digest in reversed(self._digests):
            known = self._scoped.conversations.get(digest)
            if known is not None:
                return known
        return None, 0


def read_exchanges(rows: Sequence[tuple[Any, ...]]) -> list[Exchange]:
    """Rows of `SELECT` as exchanges, in the order in which they were asked."""
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
        )
    return sorted(found.values(), key=lambda exchange: exchange.created_at)


def _as_message(prepared: Prepared) -> list[dict[str, Any]]:
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
