"""The rollouts of a batch, checked: ids are ids, each has one logprob, its tokens are counted, and a rollout
that cannot be trained says why.

`overlong_penalty` is DAPO's soft punishment of length (arXiv 2503.14476, eq. 13): longer answers are worth
gradually less.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from art.batch.balance_sheet import UNTRAINABLE
from art.batch.batch_types import GroupRow, IntArray, RolloutRow, SampleRow
from art.errors import TokenMismatchError
from art.wire.algorithm import Algorithm, OverlongSpec
from art.wire.samples import image_runs, split_candidates


def overlong_penalty(tokens: int, spec: OverlongSpec) -> float:
    """Returns the term added to the reward of a rollout by its number of sampled tokens: from 0 down to
    -penalty.

    >>> spec = OverlongSpec(limit=100, band=20)
    >>> [overlong_penalty(n, spec) for n in (80, 85, 100, 500)]
    [0.0, -0.25, -1.0, -1.0]
    """
    over = max(0, tokens - (spec.limit - spec.band)) / spec.band
    return -spec.penalty * min(1.0, over) if over else 0.0


def checked_ids(rollout: str, turn: int, row: SampleRow) -> IntArray:
    """`prompt_ids + completion_ids` of one sample, checked.

    Raises TokenMismatchError naming the rollout, the turn (from 0) and the difference.
    """
    where = f"Turn {turn} of rollout {rollout!r} (sample {row.sample_id!r})"
    prompt = _ids(where, "prompt", row.prompt_ids)
    completion = _ids(where, "completion", row.completion_ids)
    if len(prompt) == 0:
        raise TokenMismatchError(f"{where} has no prompt ids; nothing predicts its first token.")
    if row.given:
        return np.concatenate([prompt, completion])
    if len(row.completion_logprobs) != len(completion):
        raise TokenMismatchError(
            f"{where} has {len(row.completion_logprobs)} logprobs for {len(completion)} sampled ids. "
            "Train only on completions that were sampled through an ART server."
        )
    _check_logprobs(where, row.completion_logprobs)
    if row.candidates:
        _check_candidates(where, row)
    return np.concatenate([prompt, completion])


def _ids(where: str, part: str, ids: Sequence[int]) -> IntArray:
    if len(ids) == 0:
        return np.zeros(0, np.int32)
    array = np.asarray(ids)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        wrong = next((value for value in ids if not isinstance(value, int)), ids)
        raise TokenMismatchError(f"{where} has {part} ids that are not whole numbers, such as {wrong!r}.")
    low, high = int(array.min()), int(array.max())
    if (low < 0 and not (part == "prompt" and _are_images(array))) or high >= 2**31:
        raise TokenMismatchError(f"{where} has {part} ids outside 0..2^31-1: from {low} to {high}.")
    return array.astype(np.int32)


def _are_images(array: npt.NDArray[np.integer]) -> bool:
    """Returns whether every negative id is of an image."""
    try:
        return bool(image_runs(array.tolist()))
    except ValueError:
        return False


def _check_candidates(where: str, row: SampleRow) -> None:
    """Each sampled id is in the set that it was drawn from."""
    try:
        sets = split_candidates(row.candidates)
    except ValueError as error:
        raise TokenMismatchError(f"{where} has candidates that are no record of them: {error}.") from error
    if len(sets) != len(row.completion_ids):
        raise TokenMismatchError(
            f"{where} has {len(sets)} sets of candidates for {len(row.completion_ids)} sampled ids."
        )
    for at, (token, ids) in enumerate(zip(row.completion_ids, sets, strict=True)):
        if len(ids) and token not in ids:
            raise TokenMismatchError(
                f"{where}: sampled id {at} is {token}, which is not among the {len(ids)} candidates that the "
                "sampler recorded for it."
            )


def _check_logprobs(where: str, logprobs: Sequence[float]) -> None:
    try:
        array = np.asarray(logprobs, np.float64)
    except (TypeError, ValueError) as error:
        raise TokenMismatchError(f"{where} has logprobs that are not numbers: {error}.") from error
    wrong = np.flatnonzero(~(np.isfinite(array) & (array <= 0.0)))
    if len(wrong):
        at = int(wrong[0])
        raise TokenMismatchError(
            f"{where}: the logprob of sampled id {at} is {logprobs[at]!r}; "
            "logprobs are finite and at most 0 (natural log of a probability)."
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedRollout:
    """One rollout of one group."""

    row: RolloutRow
    group: int
    samples: Sequence[SampleRow]
    """Those that can be trained. The others are context: what they say is in the prompts after them."""
    ids: Sequence[IntArray]
    """Prompt and completion of each of `samples`."""
    tokens: int
    """Sampled, over all samples of the rollout."""
    penalty: float
    """The penalty of its length, 0 or less, which is added to the reward."""
    fate: str | None
    """Why it is not trained whatever its advantage, or None."""

    @property
    def reward(self) -> float | None:
        """The reward that advantages are computed from."""
        return None if self.row.reward is None else self.row.reward + self.penalty

    @property
    def trainable_tokens(self) -> int:
        return 0 if self.fate else _tokens(self.samples)


def check_rollouts(
    groups: Sequence[GroupRow], algorithm: Algorithm, max_length: int | None
) -> Iterator[list[CheckedRollout]]:
    """Yields the rollouts of each group, every row checked. Raises TokenMismatchError."""
    owners: dict[str, str] = {}
    for number, group in enumerate(groups):
        rollouts = [_checked(row, number, algorithm, max_length, owners) for row in group.rollouts]
        if group.discarded:
            reason = "replaced" if group.replaced else "discarded"
            rollouts = [replace(rollout, fate=_discarded(rollout.fate, reason)) for rollout in rollouts]
        yield rollouts


def _checked(
    row: RolloutRow, group: int, algorithm: Algorithm, max_length: int | None, owners: dict[str, str]
) -> CheckedRollout:
    _claim(row, owners)
    samples = [(sample, checked_ids(row.rollout, turn, sample)) for turn, sample in enumerate(row.samples)]
    trainable = [(sample, ids) for sample, ids in samples if sample.untrainable is None]
    tokens = _tokens(row.samples)
    rollout = CheckedRollout(
        row=row,
        group=group,
        samples=[sample for sample, _ in trainable],
        ids=[ids for _, ids in trainable],
        tokens=tokens,
        penalty=overlong_penalty(tokens, algorithm.overlong) if algorithm.overlong else 0.0,
        fate=None,
    )
    return replace(rollout, fate=_fate(rollout, algorithm, max_length))


def _fate(rollout: CheckedRollout, algorithm: Algorithm, max_length: int | None) -> str | None:
    row = rollout.row
    if row.damaged:
        return "damaged"
    if rollout.tokens == 0:
        return "stale" if row.stale else "no_samples"  # all of its samples are too old to be kept
    if row.reward is None:
        return "unscored"
    if row.stale:
        return "stale"
    if algorithm.truncated == "drop" and row.samples[-1].truncated:
        return "truncated"
    if max_length is not None and any(len(ids) > max_length for ids in rollout.ids):
        return "overlong"
    return None if _tokens(rollout.samples) else UNTRAINABLE


def _discarded(fate: str | None, reason: str) -> str:
    """Returns the fate of a rollout of a discarded group, which was not checked for training."""
    return reason if fate in (None, UNTRAINABLE) else fate


def _tokens(samples: Sequence[SampleRow]) -> int:
    """Returns how many were sampled."""
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
