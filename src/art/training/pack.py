"""Token tree + loss entries -> micro-batches within a token budget.

Nodes that predict nothing trained are dropped. The rest is dealt out to micro-batches in whole subtrees, each
behind the path to it, so that every node sees its whole context; `packing/plan.py` chooses where trees are
cut. Each entry is scored in one micro-batch that has its predictor.

Letters: E = loss entries.
"""

from __future__ import annotations

import numpy as np

from art.samples.types import LossEntries, TokenTree
from art.training.packing.layout import lay_out
from art.training.packing.plan import plan_loads
from art.training.packing.runs import needed_runs
from art.training.packing.score import cut_sequences, owners, whole_sequence_loads
from art.training.packing.sequences import sequence_runs
from art.training.packing.types import Packing


def pack(tree: TokenTree, entries: LossEntries, budget: int, *, whole_sequences: bool = False) -> Packing:
    """Plan one step. `budget`: tokens of one forward pass, re-forwarded paths included.

    With `whole_sequences`, the entries of a sequence that lies on one path are scored in one micro-batch, as
    losses need that look at a sequence as a whole. A sequence that branches may still be cut:
    `Packing.cut_sequences` counts those. No token is forwarded more for it, only logits.
    """
    runs = needed_runs(tree, entries)
    sequence_E = entries.sequence_E.astype(np.int64)
    budget = max(budget, int(runs.depth_T.max(initial=-1)) + 1)
    if whole_sequences and len(entries):
        sequences = sequence_runs(runs, sequence_E)
        loads = plan_loads(runs, budget, sequences.branching(runs))
        load_E = whole_sequence_loads(runs, loads, sequences)
    else:
        loads = plan_loads(runs, budget)
        load_E = owners(runs, loads)[runs.run_T[runs.predictor_E]]
    order_E = np.argsort(load_E, kind="stable")
    bounds = np.searchsorted(load_E[order_E], np.arange(len(loads) + 1))
    return Packing(
        micro_batches=tuple(
            lay_out(tree, entries, runs, load, order_E[bounds[number] : bounds[number + 1]])
            for number, load in enumerate(loads)
        ),
        lower_bound=len(runs.tokens_T),
        pairs_needed=int((runs.depth_T + 1).sum()),
        budget=budget,
        cut_sequences=cut_sequences(load_E, sequence_E),
    )
