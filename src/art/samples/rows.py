"""The check that a ledger row can be what was sampled: ids are ids, and each has one logprob."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from art.errors import TokenMismatchError
from art.samples.types import IntArray, SampleRow
from art.wire.candidates import split_candidates


def sequence(rollout: str, turn: int, row: SampleRow) -> IntArray:
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
    if low < 0 or high >= 2**31:
        raise TokenMismatchError(f"{where} has {part} ids outside 0..2^31-1: from {low} to {high}.")
    return array.astype(np.int32)


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
