"""Answered turns kept in memory, the least recently used forgotten first."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass

from art.server.tenants.tenancy import Tenant

Rollout = tuple[Tenant, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class AnsweredTurn:
    """A sample as stitching needs it."""

    sample_id: str
    tenant: Tenant
    rollout_id: str | None
    key: bytes
    """Of the conversation; those of two tenants are never the same."""
    tools_key: bytes

    prompt_ids: array[int]
    completion_ids: array[int]
    truncated: bool
    """The reply was cut off at its token limit."""

    @property
    def rollout(self) -> Rollout | None:
        """The rollout among everybody's."""
        return None if self.rollout_id is None else (self.tenant, self.rollout_id)

    @property
    def tokens(self) -> int:
        """Ids held."""
        return len(self.prompt_ids) + len(self.completion_ids)


class TurnIndex:
    """Finds an answered turn by its conversation's key, within a rollout or anywhere."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.forgot = False
        """Whether a turn ever had to go: then only the ledger knows all."""
        self._tokens = 0
        self._turns: OrderedDict[str, AnsweredTurn] = OrderedDict()
        self._newest: dict[tuple[Rollout | None, bytes], str] = {}
        self._rollouts: dict[Rollout, int] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, turn: AnsweredTurn) -> None:
        """Keep a turn; the newest one of a key is found first."""
        if turn.sample_id in self._turns:
            return
        self._turns[turn.sample_id] = turn
        self._tokens += turn.tokens
        self._newest[None, turn.key] = turn.sample_id
        if turn.rollout is not None:
            self._newest[turn.rollout, turn.key] = turn.sample_id
            self._rollouts[turn.rollout] = self._rollouts.get(turn.rollout, 0) + 1
        while self._tokens > self.max_tokens and len(self._turns) > 1:
            self._forget_oldest()

    def find(self, key: bytes, rollout: Rollout | None) -> AnsweredTurn | None:
        """The newest turn of this key in the rollout, else in any."""
        sample_id = self._newest.get((rollout, key)) if rollout is not None else None
        return self.get(sample_id or self._newest.get((None, key)))

    def get(self, sample_id: str | None) -> AnsweredTurn | None:
        """The turn of a sample."""
        turn = self._turns.get(sample_id) if sample_id is not None else None
        if turn is not None:
            self._turns.move_to_end(turn.sample_id)
        return turn

    def knows_rollout(self, rollout: Rollout) -> bool:
        """Whether a turn of the rollout is kept."""
        return rollout in self._rollouts

    def _forget_oldest(self) -> None:
        sample_id, turn = self._turns.popitem(last=False)
        self.forgot = True
        self._tokens -= turn.tokens
        for scope in {None, turn.rollout}:
            if self._newest.get((scope, turn.key)) == sample_id:
                del self._newest[scope, turn.key]
        if turn.rollout is not None:
            left = self._rollouts[turn.rollout] - 1
            if left:
                self._rollouts[turn.rollout] = left
            else:
                del self._rollouts[turn.rollout]
