"""Samples and their paths in the tree -> loss entries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from art.samples.types import IntArray, LossEntries, SampleRow


def loss_entries(
    samples: Sequence[SampleRow],
    paths: Sequence[IntArray],
    advantages: Sequence[float],
    *,
    sequences: Sequence[int],
    sampling: Sequence[int] | None = None,
) -> LossEntries:
    """One entry per sampled token per sample; all tokens of a sample get its advantage.

    `paths[i]` are the nodes of `samples[i]`'s prompt and completion, `sequences[i]` the number of its
    rollout, `sampling[i]` that of its distribution. `LossEntries` has an example.
    """
    lengths = [len(sample.completion_ids) for sample in samples]
    nodes = [path[len(path) - length :] for path, length in zip(paths, lengths, strict=True)]
    token_E = np.concatenate([np.zeros(0, np.int32), *nodes])
    logprobs = [np.asarray(sample.completion_logprobs, np.float32) for sample in samples]
    return LossEntries(
        token_E=token_E,
        logprob_E=np.concatenate([np.zeros(0, np.float32), *logprobs]),
        advantage_E=np.repeat(np.asarray(advantages, np.float32), lengths),
        weight_E=np.ones(len(token_E), np.float32),
        sequence_E=np.repeat(np.asarray(sequences, np.int32), lengths),
        sampling_E=np.repeat(np.asarray(sampling or [0] * len(samples), np.int32), lengths),
    )
