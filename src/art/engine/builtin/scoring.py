"""Rows to score in groups of similar length, each forwarded at once."""

from __future__ import annotations

from art.engine.builtin.model import CausalModel

SCORE_TOKENS = 8192
"""Padded tokens of one pass."""


def score_rows(model: CausalModel, adapter: int, rows: list[list[int]]) -> list[list[float]]:
    """Logprob of each id given those before it, temperature 1; rows of at least two ids, in their order."""
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
    scores: list[list[float]] = [[] for _ in rows]
    while order:
        count = max(1, SCORE_TOKENS // len(rows[order[-1]]))
        order, group = order[:-count], order[-count:]
        for index, values in zip(group, model.score(adapter, [rows[i] for i in group]), strict=True):
            scores[index] = values
    return scores
