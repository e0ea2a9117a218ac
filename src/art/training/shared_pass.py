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
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from art.training.lora_product import NotSharedError, Segment
from art.training.optimizer import earlier_gradients
from art.training.packing.runs import MicroBatch
from art.training.policy import EntryScores, Policy
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
        joined = _joined(pieces)
        with policy.recomputing():
            hidden_TD, plan = policy.hidden_of(joined, {piece.start for piece in pieces})
        losses = []
        for piece, scores in zip(pieces, _scores(policy, hidden_TD, joined, pieces), strict=True):
            step = piece.part.step
            # What a pass computes is not told apart by its parts: each has the share of its tokens.
            pairs = round(plan.pairs * (piece.stop - piece.start) / tokens)
            loss = step.loss_of(scores, piece.micro, piece.part.tally, pairs=pairs)
            losses += [loss] if piece.part.backward else []
            piece.part.tally.report_progress()
        if losses:
            torch.stack(losses).sum().backward()


def _scores(
    policy: Policy, hidden_TD: torch.Tensor, joined: MicroBatch, pieces: Sequence[_Piece]
) -> Iterator[EntryScores]:
    """Yields the scores of each piece: of one product with the head, where all want the same of it."""
    steps = [piece.part.step for piece in pieces]
    entropies = [step.algorithm.entropy is not None for step in steps]
    if len(set(entropies)) > 1 or not all(step.drawn.plain for step in steps):
        for piece, step, wanted in zip(pieces, steps, entropies, strict=True):
            own_TD = hidden_TD[piece.start : piece.stop]
            yield policy.scores_of(own_TD, piece.micro, step.drawn, entropies=wanted)
        return
    scores = policy.scores_of(hidden_TD, joined, entropies=entropies[0])
    sizes = [len(piece.micro.entry_E) for piece in pieces]
    for logprobs_E, entropies_E, predictor_E in zip(
        scores.logprobs_E.split(sizes),
        scores.entropies_E.split(sizes),
        scores.predictor_E.split(sizes),
        strict=True,
    ):
        yield replace(scores, logprobs_E=logprobs_E, entropies_E=entropies_E, predictor_E=predictor_E)


def _joined(pieces: Sequence[_Piece]) -> MicroBatch:
    """The tokens and the entries of all pieces as one micro-batch."""
    micros = [piece.micro for piece in pieces]
    predictors = np.cumsum([0, *(len(one.predictor_P) for one in micros)])
    targets = np.cumsum([0, *(len(one.target_id_N) for one in micros)])
    entries = sum(len(one.entry_E) for one in micros)
    return MicroBatch(
        tokens_T=np.concatenate([one.tokens_T for one in micros]),
        depth_T=np.concatenate([one.depth_T for one in micros]),
        end_T=np.concatenate([piece.micro.end_T + piece.start for piece in pieces]),
        repeated=sum(one.repeated for one in micros),
        predictor_P=np.concatenate([piece.micro.predictor_P + piece.start for piece in pieces]),
        target_predictor_N=np.concatenate(
            [one.target_predictor_N + first for one, first in zip(micros, predictors, strict=False)]
        ),
        target_id_N=np.concatenate([one.target_id_N for one in micros]),
        entry_E=np.arange(entries, dtype=np.int64),
        entry_target_E=np.concatenate(
            [one.entry_target_E + first for one, first in zip(micros, targets, strict=False)]
        ),
    )
