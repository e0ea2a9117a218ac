"""A rollout as a batch sees it: its ids checked, its tokens counted, and why it cannot be trained if so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from art.errors import TokenMismatchError
from art.samples.overlong import overlong_penalty
from art.samples.rows import sequence
from art.samples.sheet import UNTRAINABLE
from art.samples.types import GroupRow, IntArray, RolloutRow, SampleRow
from art.wire.algorithm import Algorithm


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One rollout of one group."""

    rollout: RolloutRow
    group: int
    samples: Sequence[SampleRow]
    """Those that can be trained. The others are context: what they say is in the prompts after them."""
    ids: Sequence[IntArray]
    """Prompt and completion of each of `samples`."""
    tokens: int
    """Sampled, over all samples of the rollout."""
    penalty: float
    """Of its length, added to the reward."""
    fate: str | None
    """Why it is not trained whatever its advantage, or None."""

    @property
    def reward(self) -> float | None:
        """The reward that advantages are computed from."""
        return None if self.rollout.reward is None else self.rollout.reward + self.penalty

    @property
    def trainable_tokens(self) -> int:
        return 0 if self.fate else _tokens(self.samples)


def read_attempts(
    groups: Sequence[GroupRow], algorithm: Algorithm, max_length: int | None
) -> Iterator[list[Attempt]]:
    """The attempts of each group, every row checked. Raises TokenMismatchError."""
    owners: dict[str, str] = {}
    for number, group in enumerate(groups):
        attempts = [_attempt(rollout, number, algorithm, max_length, owners) for rollout in group.rollouts]
        if group.discarded:
            attempts = [replace(attempt, fate=_discarded(attempt.fate)) for attempt in attempts]
        yield attempts


def _attempt(
    rollout: RolloutRow, group: int, algorithm: Algorithm, max_length: int | None, owners: dict[str, str]
) -> Attempt:
    _claim(rollout, owners)
    checked = [(row, sequence(rollout.rollout, turn, row)) for turn, row in enumerate(rollout.samples)]
    trainable = [(row, ids) for row, ids in checked if row.untrainable is None]
    tokens = _tokens(rollout.samples)
    attempt = Attempt(
        rollout=rollout,
        group=group,
        samples=[row for row, _ in trainable],
        ids=[ids for _, ids in trainable],
        tokens=tokens,
        penalty=overlong_penalty(tokens, algorithm.overlong) if algorithm.overlong else 0.0,
        fate=None,
    )
    return replace(attempt, fate=_fate(attempt, algorithm, max_length))


def _fate(attempt: Attempt, algorithm: Algorithm, max_length: int | None) -> str | None:
    rollout = attempt.rollout
    if rollout.damaged:
        return "damaged"
    if attempt.tokens == 0:
        return "no_samples"
    if rollout.reward is None:
        return "unscored"
    if rollout.stale:
        return "stale"
    if algorithm.truncated == "drop" and rollout.samples[-1].truncated:
        return "truncated"
    if max_length is not None and any(len(row) > max_length for row in attempt.ids):
        return "overlong"
    return None if _tokens(attempt.samples) else UNTRAINABLE


def _discarded(fate: str | None) -> str:
    """Of a rollout of a discarded group: what it is worth training was not asked."""
    return "discarded" if fate in (None, UNTRAINABLE) else fate


def _tokens(samples: Sequence[SampleRow]) -> int:
    """How many were sampled."""
    return sum(len(row.completion_ids) for row in samples)


def _claim(rollout: RolloutRow, owners: dict[str, str]) -> None:
    """No sample may be trained twice in one step."""
    for row in rollout.samples:
        owner = owners.setdefault(row.sample_id, rollout.rollout)
        if owner != rollout.rollout:
            raise TokenMismatchError(
                f"Sample {row.sample_id!r} is named by the rollouts {owner!r} and {rollout.rollout!r}; "
                "it would be trained twice. Give each rollout its own completions; a reply that is context "
                "only goes into its messages as a dict."
            )
    if len({row.sample_id for row in rollout.samples}) != len(rollout.samples):
        raise TokenMismatchError(
            f"Rollout {rollout.rollout!r} names a sample twice: "
            f"{[row.sample_id for row in rollout.samples]!r}. "
            "List each completion once, in the main history or in one additional history."
        )
