"""Groups of rollouts with their ledger rows -> the batch of one training step.

Letters: T = nodes of the token tree, E = loss entries, G = rollouts of a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from art.errors import ConfigurationError, TokenMismatchError
from art.samples.advantages import AdvantageKind, group_advantages
from art.samples.entries import loss_entries
from art.samples.rows import sequence
from art.samples.sheet import Account, check_balance
from art.samples.tree import build_tree
from art.samples.types import Batch, GroupRow, IntArray, RolloutRow, SampleRow
from art.wire.algorithm import Algorithm

DEFAULT = Algorithm()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kept:
    """A sample that is trained: `owner` is the number of its rollout among the trained ones."""

    sample: SampleRow
    ids: IntArray
    advantage: float
    owner: int


def build_batch(
    groups: Sequence[GroupRow],
    *,
    algorithm: Algorithm = DEFAULT,
    max_length: int | None = None,
) -> Batch:
    """Check every sample, decide every rollout's fate, and lay the trained ones out as a token tree.

    A rollout with a sample of more than `max_length` ids is overlong: its reward counts in its group's
    statistics, its tokens are not trained. The batch may be `empty`, when no rollout has an advantage.

    Two attempts with rewards 1 and 0, and one that failed:

    >>> def attempt(name, reward, last):
    ...     sample = SampleRow(
    ...         sample_id=name, prompt_ids=[5, 6], completion_ids=[7, last], completion_logprobs=[-0.5, -1.0]
    ...     )
    ...     return RolloutRow(rollout=name, reward=reward, samples=[sample])
    >>> batch = build_batch([GroupRow(rollouts=[attempt("a", 1.0, 8), attempt("b", 0.0, 9)], failed=1)])
    >>> batch.tree.tokens_T.tolist(), batch.entries.token_E.tolist(), batch.normalizer
    ([5, 6, 7, 8, 9], [2, 3, 2, 4], 4.0)
    >>> {fate: (row.rollouts, row.tokens) for fate, row in batch.sheet.fates.items()}
    {'failed': (1, 0), 'trained': (2, 4)}

    Raises TokenMismatchError (a row whose ids and logprobs cannot be what was sampled, or that is
    named twice), ConfigurationError (a reward that is not finite), UnbalancedSheetError.
    """
    account = Account()
    kept: list[_Kept] = []
    seen: dict[str, str] = {}
    trained = 0
    for group in groups:
        account.start(rollouts=group.failed, tokens=0)
        if group.failed:
            account.book("failed", rollouts=group.failed, tokens=0)
        values = group_advantages([rollout.reward for rollout in group.rollouts], _kind(algorithm))
        for rollout, advantage in zip(group.rollouts, values, strict=True):
            _claim(rollout, seen)
            ids = [sequence(rollout.rollout, turn, row) for turn, row in enumerate(rollout.samples)]
            tokens = sum(len(row.completion_ids) for row in rollout.samples)
            account.start(rollouts=1, tokens=tokens)
            for row in rollout.samples:
                if row.fork_reason is not None:
                    account.fork(row.fork_reason)
            fate = _fate(advantage, ids, tokens, max_length)
            if fate is not None or advantage is None:
                account.book(fate or "unscored", rollouts=1, tokens=tokens)
                continue
            kept += [
                _Kept(sample=row, ids=row_ids, advantage=advantage, owner=trained)
                for row, row_ids in zip(rollout.samples, ids, strict=True)
            ]
            trained += 1
    return _lay_out(kept, account)


def _lay_out(kept: Sequence[_Kept], account: Account) -> Batch:
    tree, paths = build_tree([one.ids for one in kept])
    entries = loss_entries(
        [one.sample for one in kept],
        paths,
        [one.advantage for one in kept],
        sequences=[one.owner for one in kept],
    )
    if kept:  # counted from what will be trained, not from what was meant to be
        account.book("trained", rollouts=len({one.owner for one in kept}), tokens=len(entries))
    sheet = check_balance(account.sheet())
    metrics = {
        "data/raw_tokens": float(sum(len(one.ids) for one in kept)),
        "data/tree_tokens": float(len(tree)),
        "data/entries": float(len(entries)),
        "data/samples": float(len(kept)),
        "loss/advantage_abs": float(np.abs(entries.advantage_E).mean()) if len(entries) else 0.0,
    }
    return Batch(
        tree=tree, entries=entries, sheet=sheet, normalizer=float(max(1, len(entries))), metrics=metrics
    )


def _fate(
    advantage: float | None, ids: Sequence[IntArray], tokens: int, max_length: int | None
) -> str | None:
    """Why a rollout is not trained, or None when it is."""
    if tokens == 0:
        return "no_samples"
    if advantage is None:
        return "unscored"
    if max_length is not None and any(len(row) > max_length for row in ids):
        return "overlong"
    return "zero_advantage" if advantage == 0.0 else None


def _kind(algorithm: Algorithm) -> AdvantageKind:
    kind = algorithm.advantage.kind
    if kind not in ("group", "centered"):
        raise ConfigurationError(f"Unknown advantages {kind!r}. Known: centered, group.")
    return kind


def _claim(rollout: RolloutRow, seen: dict[str, str]) -> None:
    """No sample may be trained twice in one step."""
    for row in rollout.samples:
        owner = seen.setdefault(row.sample_id, rollout.rollout)
        if owner != rollout.rollout:
            raise TokenMismatchError(
                f"Sample {row.sample_id!r} is named by the rollouts {owner!r} and {rollout.rollout!r}; "
                "it would be trained twice. Give each rollout its own completions."
            )
    if len({row.sample_id for row in rollout.samples}) != len(rollout.samples):
        raise TokenMismatchError(
            f"Rollout {rollout.rollout!r} names a sample twice: "
            f"{[row.sample_id for row in rollout.samples]!r}. "
            "List each completion once, in the main history or in one additional history."
        )
