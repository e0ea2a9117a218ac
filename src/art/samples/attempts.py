"""A rollout as a batch sees it: its ids checked, its tokens counted, and why it cannot be trained if so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from art.errors import TokenMismatchError
from art.samples.overlong import overlong_penalty
from art.samples.rows import sequence
from art.samples.types import GroupRow, IntArray, RolloutRow
from art.wire.algorithm import Algorithm


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One rollout of one group."""

    rollout: RolloutRow
    group: int
    ids: Sequence[IntArray]
    """Prompt and completion of each sample."""
    tokens: int
    """Sampled, over all samples."""
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
        return 0 if self.fate else self.tokens


def read_attempts(
    groups: Sequence[GroupRow], algorithm: Algorithm, max_length: int | None
) -> Iterator[list[Attempt]]:
    """The attempts of each group, every row checked. Raises TokenMismatchError."""
    owners: dict[str, str] = {}
    for number, group in enumerate(groups):
        attempts = [_attempt(rollout, number, algorithm, max_length, owners) for rollout in group.rollouts]
        if group.discarded:
            attempts = [replace(attempt, fate=attempt.fate or "discarded") for attempt in attempts]
        yield attempts


def _attempt(
    rollout: RolloutRow, group: int, algorithm: Algorithm, max_length: int | None, owners: dict[str, str]
) -> Attempt:
    _claim(rollout, owners)
    ids = [sequence(rollout.rollout, turn, row) for turn, row in enumerate(rollout.samples)]
    tokens = sum(len(row.completion_ids) for row in rollout.samples)
    return Attempt(
        rollout=rollout,
        group=group,
        ids=ids,
        tokens=tokens,
        penalty=overlong_penalty(tokens, algorithm.overlong) if algorithm.overlong else 0.0,
        fate=_fate(rollout, ids, tokens, algorithm, max_length),
    )


def _fate(
    rollout: RolloutRow, ids: Sequence[IntArray], tokens: int, algorithm: Algorithm, max_length: int | None
) -> str | None:
    if tokens == 0:
        return "no_samples"
    if rollout.reward is None:
        return "unscored"
    if rollout.stale:
        return "stale"
    if algorithm.truncated == "drop" and rollout.samples[-1].truncated:
        return "truncated"
    if max_length is not None and any(len(row) > max_length for row in ids):
        return "overlong"
    return None


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
