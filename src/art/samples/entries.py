"""Samples and their paths in the tree -> loss entries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from art.samples.advantages import Advantage
from art.samples.types import CandidateSets, IntArray, LossEntries, SampleRow
from art.wire.candidates import split_candidates


def loss_entries(
    samples: Sequence[SampleRow],
    paths: Sequence[IntArray],
    advantages: Sequence[Advantage],
    weights: Sequence[float] | None = None,
    *,
    sequences: Sequence[int],
    sampling: Sequence[int] | None = None,
    places: bool = False,
) -> LossEntries:
    """One entry per sampled token per sample. Everything is given per sample.

    `paths[i]`: the nodes of its prompt and completion. `advantages[i]`: one number, or one for each of its
    tokens. `weights[i]`: of each of its tokens, by default 1. `sequences[i]`: the number of its rollout.
    `sampling[i]`: that of its distribution. `places`: whether to say where in its completion each token is.
    `LossEntries` has an example.
    """
    lengths = [len(sample.completion_ids) for sample in samples]
    nodes = [path[len(path) - length :] for path, length in zip(paths, lengths, strict=True)]
    token_E = np.concatenate([np.zeros(0, np.int32), *nodes])
    logprobs = [
        np.full(length, np.nan, np.float32) if one.given else np.asarray(one.completion_logprobs, np.float32)
        for one, length in zip(samples, lengths, strict=True)
    ]
    each = [np.broadcast_to(value, length) for value, length in zip(advantages, lengths, strict=True)]
    candidates_E, candidates = _candidates(samples)
    return LossEntries(
        token_E=token_E,
        logprob_E=np.concatenate([np.zeros(0, np.float32), *logprobs]),
        advantage_E=np.concatenate([np.zeros(0), *each]).astype(np.float32),
        weight_E=np.repeat(np.asarray(weights or [1.0] * len(samples), np.float32), lengths),
        sequence_E=np.repeat(np.asarray(sequences, np.int32), lengths),
        sampling_E=np.repeat(np.asarray(sampling or [0] * len(samples), np.int32), lengths),
        place_E=np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]) if places else None,
        candidates_E=candidates_E,
        candidates=candidates,
    )


def _candidates(samples: Sequence[SampleRow]) -> tuple[IntArray | None, CandidateSets | None]:
    """The recorded sets, equal ones once: where a policy is sure, nearly all are."""
    if not any(sample.candidates for sample in samples):
        return None, None
    numbers: dict[bytes, int] = {}
    number_E: list[int] = []
    for sample in samples:
        if not sample.candidates:
            number_E += [-1] * len(sample.completion_ids)
            continue
        for ids in split_candidates(sample.candidates):
            number_E.append(numbers.setdefault(ids.tobytes(), len(numbers)) if len(ids) else -1)
    id_J = np.frombuffer(b"".join(numbers), np.int32)
    size_K = np.array([len(ids) // id_J.itemsize for ids in numbers], np.int32)
    sets = CandidateSets(end_K=np.cumsum(size_K, dtype=np.int32), id_J=id_J)
    return np.array(number_E, np.int32), sets
