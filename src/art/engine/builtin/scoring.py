"""Rows to score in groups of similar length, each forwarded at once."""

from __future__ import annotations

from art.engine.builtin.model import CausalModel
from art.engine.protocol import Ranked

SCORE_TOKENS = 8192
"""Padded tokens of one pass."""


def rank_rows(model: CausalModel, adapter: int, rows: list[list[int]], most: int = 0) -> list[Ranked]:
    """Logprob of each id given those before it, temperature 1, and the `most` probable ids in its place; rows
    of at least two ids, in their order.
    """
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
    ranked: dict[int, Ranked] = {}
    while order:
        count = max(1, SCORE_TOKENS // len(rows[order[-1]]))
        order, group = order[:-count], order[-count:]
        ranked.update(zip(group, model.rank(adapter, [rows[i] for i in group], most), strict=True))
    return [ranked[index] for index in range(len(rows))]
