"""Answered turns kept in memory, the least recently used forgotten first."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class AnsweredTurn:
    """A sample as stitching needs it."""

    sample_id: str
    rollout_id: str | None
    key: bytes
    tools_key: bytes

    prompt_ids: array[int]
    completion_ids: array[int]
    truncated: bool
    """The reply was cut off at its token limit."""

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
        self._newest: dict[tuple[str | None, bytes], str] = {}
        self._rollouts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, turn: AnsweredTurn) -> None:
        """Keep a turn; the newest one of a key is found first."""
        if turn.sample_id in self._turns:
            return
        self._turns[turn.sample_id] = turn
        self._tokens += turn.tokens
        self._newest[None, turn.key] = turn.sample_id
        if turn.rollout_id is not None:
            self._newest[turn.rollout_id, turn.key] = turn.sample_id
            self._rollouts[turn.rollout_id] = self._rollouts.get(turn.rollout_id, 0) + 1
        while self._tokens > self.max_tokens and len(self._turns) > 1:
            self._forget_oldest()

    def find(self, key: bytes, rollout_id: str | None) -> AnsweredTurn | None:
        """The newest turn of this key in the rollout, else in any."""
        sample_id = self._newest.get((rollout_id, key)) if rollout_id is not None else None
        return self.get(sample_id or self._newest.get((None, key)))

    def get(self, sample_id: str | None) -> AnsweredTurn | None:
        """The turn of a sample."""
        turn = self._turns.get(sample_id) if sample_id is not None else None
        if turn is not None:
            self._turns.move_to_end(turn.sample_id)
        return turn

    def knows_rollout(self, rollout_id: str) -> bool:
        """Whether a turn of the rollout is kept."""
        return rollout_id in self._rollouts

    def _forget_oldest(self) -> None:
        sample_id, turn = self._turns.popitem(last=False)
        self.forgot = True
        self._tokens -= turn.tokens
        for scope in {None, turn.rollout_id}:
            if self._newest.get((scope, turn.key)) == sample_id:
                del self._newest[scope, turn.key]
        if turn.rollout_id is not None:
            left = self._rollouts[turn.rollout_id] - 1
            if left:
                self._rollouts[turn.rollout_id] = left
            else:
                del self._rollouts[turn.rollout_id]
