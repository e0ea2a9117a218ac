"""Samples and their paths in the tree -> loss entries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from art.samples.advantages import Advantage
from art.samples.types import IntArray, LossEntries, SampleRow


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
    return LossEntries(
        token_E=token_E,
        logprob_E=np.concatenate([np.zeros(0, np.float32), *logprobs]),
        advantage_E=np.concatenate([np.zeros(0), *each]).astype(np.float32),
        weight_E=np.repeat(np.asarray(weights or [1.0] * len(samples), np.float32), lengths),
        sequence_E=np.repeat(np.asarray(sequences, np.int32), lengths),
        sampling_E=np.repeat(np.asarray(sampling or [0] * len(samples), np.int32), lengths),
        place_E=np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]) if places else None,
    )
