"""Gradients of several adapters in one forward and backward pass over the base that they share.

The micro-batches of all batches stand side by side in a pass: no token sees one of another batch, and each
adapter computes its own tokens (`art.training.lora_product`). The sum of the losses is differentiated once;
each loss depends on its own adapter alone, so that each gets its own gradient, to rounding: the products of
the base have another shape than in a pass of their own.

Letters: T = tokens of a pass, E = loss entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from art.training.lora_product import NotSharedError, Segment
from art.training.optimizer import earlier_gradients
from art.training.packing.runs import MicroBatch
from art.training.policy import Policy
from art.training.step import AddedBatch, BatchStep
from art.training.tally import Progress, TokenColumns


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SharedBatch:
    """One batch, and the adapter whose gradient it is of."""

    adapter: str
    step: BatchStep
    progress: Progress


def add_gradients_together(
    policy: Policy,
    batches: Sequence[SharedBatch],
    segmented: Callable[[Sequence[Segment]], AbstractContextManager[None]],
    *,
    token_budget: int,
) -> list[tuple[dict[str, float], TokenColumns | None]]:
    """Does what `art.training.step.add_gradients` does with each batch; no two are of one adapter.

    Raises NotSharedError, TrainingError (a loss or gradient is not finite) and what an allocator raises: no
    gradient is changed then, and the caller takes the batches one by one.
    """
    with ExitStack() as earlier:
        for batch in batches:
            keep_new = batch.step.request.gradient == "add"
            earlier.enter_context(earlier_gradients(batch.step.learner.optimizer, keep_new=keep_new))
        for batch in batches:
            if not batch.step.needs_one_pass(token_budget):
                raise NotSharedError("a batch needs several passes")
        parts = [_Part(batch, token_budget) for batch in batches]
        for pieces in _passes(parts, token_budget):
            _accumulate(policy, pieces, segmented)
        for part in parts:
            part.check_finite()
    return [part.finish() for part in parts]


class _Part(AddedBatch):
    """One batch in the making, cut into its micro-batches."""

    def __init__(self, batch: SharedBatch, token_budget: int) -> None:
        super().__init__(batch.step, batch.progress)
        self.adapter = batch.adapter
        share = self.step.begin_update(self.everything_E, self.tally, token_budget)
        self.micro_batches = [micro for _, micro in share.micro_batches]


class _Piece(NamedTuple):
    """A micro-batch of a part, and where its tokens stand in the pass."""

    part: _Part
    micro: MicroBatch
    start: int
    stop: int


def _passes(parts: Sequence[_Part], token_budget: int) -> Iterator[list[_Piece]]:
    """The micro-batches of all parts, as many in a pass as its tokens have room for."""
    pieces: list[_Piece] = []
    start = 0
    for part in parts:
        for micro in part.micro_batches:
            size = len(micro.tokens_T)
            if pieces and start + size > token_budget:
                yield pieces
                pieces, start = [], 0
            pieces.append(_Piece(part, micro, start, start + size))
            start += size
    if pieces:
        yield pieces


def _accumulate(
    policy: Policy,
    pieces: Sequence[_Piece],
    segmented: Callable[[Sequence[Segment]], AbstractContextManager[None]],
) -> None:
    """Adds the gradients of one pass."""
    segments = [Segment(piece.part.adapter, piece.start, piece.stop) for piece in pieces]
    tokens = pieces[-1].stop
    with segmented(segments), torch.set_grad_enabled(any(piece.part.backward for piece in pieces)):
        with policy.recomputing():
            hidden_TD, plan = policy.hidden_of(_joined(pieces), {piece.start for piece in pieces})
        losses = []
        for piece in pieces:
            scores = policy.scores_of(hidden_TD[piece.start : piece.stop], piece.micro, piece.part.step.drawn)
            # What a pass computes is not told apart by its parts: each has the share of its tokens.
            pairs = round(plan.pairs * (piece.stop - piece.start) / tokens)
            loss = piece.part.step.loss_of(scores, piece.micro, piece.part.tally, pairs=pairs)
            losses += [loss] if piece.part.backward else []
            piece.part.tally.report_progress()
        if losses:
            torch.stack(losses).sum().backward()


def _joined(pieces: Sequence[_Piece]) -> MicroBatch:
    """The tokens of all pieces as one micro-batch, of which no entry is scored."""
    return MicroBatch.unscored(
        tokens_T=np.concatenate([piece.micro.tokens_T for piece in pieces]),
        depth_T=np.concatenate([piece.micro.depth_T for piece in pieces]),
        end_T=np.concatenate([piece.micro.end_T + piece.start for piece in pieces]),
    )
