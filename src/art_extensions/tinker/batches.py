"""A call -> one token tree with its loss entries, and logprobs of entries -> those of its datums.

There is one entry for each target of each position, datum by datum, also where its weight is 0: the reply has
the logprob of every target. Its node is the target's own: the next node of the datum's path where the target
is the input's next id, otherwise a child of the position's node that nothing follows.

The inputs [5, 6, 7] with the targets [6, 9, 8]; 9 is not the input's next id:

    tokens 5 6 7 8 9    parent -1 0 1 2 1    end 5 5 4 4 5    depth 0 1 2 3 2
    entries (node): 1 4 3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from art.batch.batch_types import FloatArray, IntArray, LossEntries, TokenTree
from art.batch.token_tree import build_tree
from art.wire.algorithm import Algorithm
from art_extensions.tinker.forward_backward import ForwardBackwardCall, LossDatum
from art_extensions.tinker.leaves import add_leaves
from art_extensions.tinker.loss_functions import (
    ADVANTAGES,
    LOGPROBS,
    MASK,
    RATIO_MASK,
    WEIGHTS,
    algorithm_of,
)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LossBatch:
    """The batch of one call, as a trainer takes it."""

    tree: TokenTree
    entries: LossEntries
    algorithm: Algorithm
    rows: tuple[slice, ...]
    """The entries of each datum."""
    shapes: tuple[tuple[int, ...], ...]
    """The shape of each datum's targets, [N] or [N, K]; its entries are row by row."""
    normalizer: float = 1.0
    """Tinker's losses are sums."""


def loss_batch(call: ForwardBackwardCall) -> LossBatch:
    """Raises RequestError for a loss or a configuration that is not supported."""
    algorithm = algorithm_of(call.loss_fn, call.config)
    tree, node_E = _target_nodes(call.data)
    ends = np.cumsum([datum.targets.size for datum in call.data]).tolist()
    starts = [0, *ends[:-1]]
    size = len(node_E)
    weight_E = _column(call.data, MASK, 1.0)
    entries = LossEntries(
        token_E=node_E,
        logprob_E=_column(call.data, LOGPROBS, np.nan),
        # The weights of cross_entropy may be negative, which those of entries are not.
        advantage_E=_column(call.data, WEIGHTS if call.loss_fn == "cross_entropy" else ADVANTAGES, 1.0),
        weight_E=weight_E,
        sequence_E=_sequences(call.data),
        sampling_E=np.zeros(size, np.int32),
    )
    return LossBatch(
        tree=tree,
        entries=entries,
        algorithm=algorithm,
        rows=tuple(slice(start, end) for start, end in zip(starts, ends, strict=True)),
        shapes=tuple(datum.targets.shape for datum in call.data),
    )


def per_datum(batch: LossBatch, logprob_E: npt.NDArray[np.floating]) -> list[FloatArray]:
    """The logprobs of each datum's targets, in their shape."""
    values_E = np.asarray(logprob_E, np.float32)
    return [values_E[rows].reshape(shape) for rows, shape in zip(batch.rows, batch.shapes, strict=True)]


def _target_nodes(data: Sequence[LossDatum]) -> tuple[TokenTree, IntArray]:
    """The tree of all inputs and targets, and the node of each target, [E]."""
    # The first target after the last input ends the path: of most datums it is the only one off the input.
    ends = [datum.targets[-1].reshape(-1)[:1] for datum in data]
    tree, paths = build_tree(
        [np.concatenate([datum.input_ids, end]) for datum, end in zip(data, ends, strict=True)]
    )
    widths = [datum.targets.size // len(datum.input_ids) for datum in data]
    id_E = np.concatenate([datum.targets.reshape(-1) for datum in data])
    steps = list(zip(paths, widths, strict=True))
    before_E = np.concatenate([np.repeat(path[:-1], width) for path, width in steps])
    node_E = np.concatenate([np.repeat(path[1:], width) for path, width in steps])
    odd_E = tree.tokens_T[node_E] != id_E
    if not odd_E.any():
        return tree, node_E
    tree, moved_T, child_L = add_leaves(tree, before_E[odd_E], id_E[odd_E])
    node_E = moved_T[node_E]
    node_E[odd_E] = child_L
    return tree, node_E


def _column(data: Sequence[LossDatum], name: str, otherwise: float) -> FloatArray:
    """[E], with one number for datums that lack the column."""
    return np.concatenate(
        [
            datum.columns[name].reshape(-1)
            if name in datum.columns
            else np.full(datum.targets.size, otherwise, np.float32)
            for datum in data
        ]
    )


def _sequences(data: Sequence[LossDatum]) -> IntArray:
    """The number of each entry's datum, [E]. What a datum leaves out of its sequence's ratio is a sequence of
    its own, after those of all datums: the ratio is a mean over a sequence."""
    numbers = []
    for number, datum in enumerate(data):
        inside = datum.columns.get(RATIO_MASK)
        own = np.full(datum.targets.size, number, np.int32)
        numbers.append(own if inside is None else np.where(inside.reshape(-1) != 0, own, own + len(data)))
    return np.concatenate(numbers).astype(np.int32)
