"""A group of 16 completions of 512 tokens behind one prompt of 8,192: as one tree, and as plain rows.

The rows forward 16 x 8,704 tokens, the tree 16,384. Both go through the same `train_step` of a Qwen3-0.6B
shape, layers computed twice.
"""

from __future__ import annotations

import sys

from art.batch.batch_types import Batch, GroupRow
from art.batch.build import build_batch
from bench.gpu.results import Session
from bench.gpu.shapes import Shape, find_shape, make_policy, peak_gib, start_peak
from bench.gpu.trainer import ALGORITHM, draw_ids, make_learner, make_rollout, measure_steps

GROUP = 16
ROWS_REPETITIONS = 1


def make_group(shape: Shape) -> tuple[Batch, list[Batch]]:
    """16 completions under a prompt of half a row: as one batch, and each as a batch of its own."""
    prompt = draw_ids(shape, shape.row // 2, seed=1)
    rollouts = [
        make_rollout(
            f"r{n}", prompt, draw_ids(shape, shape.row // (2 * GROUP), seed=2 + n), n % 2 * 2.0 - 1.0
        )
        for n in range(GROUP)
    ]
    alone = [build_batch([GroupRow(rollouts=[one])], algorithm=ALGORITHM) for one in rollouts]
    return build_batch([GroupRow(rollouts=rollouts)], algorithm=ALGORITHM), alone


def mean_pairs(batch: Batch) -> float:
    """Returns how many tokens a token of the tree attends to, on average."""
    return float(batch.tree.depth_T.mean()) + 1


def main(arguments: list[str]) -> None:
    session, _ = Session.open("tree", arguments)
    shape = find_shape("qwen3-0.6b", dry=session.dry)
    learner = make_learner(make_policy(shape, session.device, twice=True))
    tree, alone = make_group(shape)
    start_peak(session.device)
    tree_s = measure_steps(learner, [tree], shape.row)
    tree_gib = peak_gib(session.device)
    start_peak(session.device)
    rows_s = measure_steps(learner, alone, shape.row, ROWS_REPETITIONS)
    row_tokens, tokens = sum(len(one.tree) for one in alone), len(tree.tree)
    limit = session.tokens_limit(shape.flops_per_token(mean_pairs(tree), twice=True))
    session.record(
        f"{shape.name}: {GROUP} x {shape.row // (2 * GROUP)} tokens behind {shape.row // 2:,}, one step",
        tree_s,
        "s",
        peer=rows_s,
        peer_name="plain rows",
        limit=None if limit is None else tokens / limit,
        limit_how=f"{tokens:,} tokens of the tree at the measured matrix rate",
        note=f"{row_tokens / tokens:.1f} x fewer tokens than in rows, {rows_s / tree_s:.1f} x faster",
    )
    session.record(
        f"{shape.name}: peak memory of that",
        tree_gib,
        "GiB",
        peer=peak_gib(session.device),
        peer_name="one plain row at a time",
    )


if __name__ == "__main__":
    main(sys.argv[1:])
