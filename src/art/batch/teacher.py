"""What a teacher is asked, and where its answers belong: every trained token is scored once.

Letters: T = nodes of the token tree, E = loss entries, P = nodes of one path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from art.batch.batch_types import Batch, IntArray, LossEntries, TokenTree


def scored_paths(tree: TokenTree, entries: LossEntries) -> list[IntArray]:
    """The fewest paths of nodes from a root that pass every node with an entry. Turns that extend each
    other are one path.

    >>> from art.batch.build import build_batch
    >>> from art.batch.batch_types import GroupRow, RolloutRow, SampleRow
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
    asked_T = np.zeros(len(tree), bool)
    asked_T[entries.token_E] = True
    asked = np.flatnonzero(asked_T)
    following = np.append(asked[1:], len(tree))
    index_T = np.arange(len(tree))
    starts = np.flatnonzero((tree.parent_T != index_T - 1) | (index_T == 0))
    return [_path(tree, starts, last) for last in asked[following >= tree.end_T[asked]].tolist()]


def _path(tree: TokenTree, starts: npt.NDArray[np.int64], last: int) -> IntArray:
    """The nodes from the root to `last`, run by run: within a run each node's parent is the one before it."""
    pieces, node = [], last
    while node >= 0:
        start = int(starts[np.searchsorted(starts, node, side="right") - 1])
        pieces.append(np.arange(start, node + 1, dtype=np.int32))
        node = int(tree.parent_T[start])
    return np.concatenate(pieces[::-1])


def with_teacher(batch: Batch, paths: Sequence[IntArray], logprobs: Sequence[Sequence[float]]) -> Batch:
    """The batch with the teacher's logprob of each entry.

    `logprobs`: one number for each node of each path but its first, which nothing predicts.
    """
    teacher_T = np.full(len(batch.tree), np.nan, np.float32)
    for path_P, logprobs_P in zip(paths, logprobs, strict=True):
        teacher_T[path_P[1:]] = logprobs_P
    return replace(batch, entries=replace(batch.entries, teacher_E=teacher_T[batch.entries.token_E]))
