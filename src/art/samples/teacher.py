"""What a teacher is asked, and where its answers belong: every trained token is scored once.

Letters: T = nodes of the token tree, E = loss entries, P = nodes of one path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from art.samples.types import Batch, IntArray, LossEntries, TokenTree


def scored_paths(tree: TokenTree, entries: LossEntries) -> list[IntArray]:
    """The fewest paths of nodes from a root that pass every node with an entry. Turns that extend each
    other are one path.

    >>> from art.samples.batch import build_batch
    >>> from art.samples.types import GroupRow, RolloutRow, SampleRow
    >>> def turn(name, prompt, ids):
    ...     return SampleRow(
    ...         sample_id=name, prompt_ids=prompt, completion_ids=ids, completion_logprobs=[-1.0] * len(ids)
    ...     )
    >>> rollouts = [
    ...     RolloutRow(rollout="a", reward=1.0, samples=[turn("a1", [5], [6]), turn("a2", [5, 6, 7], [8])]),
    ...     RolloutRow(rollout="b", reward=0.0, samples=[turn("b1", [5], [9])]),
    ... ]
    >>> batch = build_batch([GroupRow(rollouts=rollouts)])
    >>> [batch.tree.tokens_T[path].tolist() for path in scored_paths(batch.tree, batch.entries)]
    [[5, 6, 7, 8], [5, 9]]
    """
    asked = np.unique(entries.token_E)
    following = np.append(asked[1:], len(tree))
    return [
        # Ancestors are the nodes before it whose subtree has not ended.
        np.flatnonzero(tree.end_T[: last + 1] > last).astype(np.int32)
        for last in asked[following >= tree.end_T[asked]].tolist()
    ]


def with_teacher(batch: Batch, paths: Sequence[IntArray], logprobs: Sequence[Sequence[float]]) -> Batch:
    """The batch with the teacher's logprob of each entry.

    `logprobs`: one number for each node of each path but its first, which nothing predicts.
    """
    teacher_T = np.full(len(batch.tree), np.nan, np.float32)
    for path_P, logprobs_P in zip(paths, logprobs, strict=True):
        teacher_T[path_P[1:]] = logprobs_P
    return replace(batch, entries=replace(batch.entries, teacher_E=teacher_T[batch.entries.token_E]))
