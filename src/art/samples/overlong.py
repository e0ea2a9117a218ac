"""DAPO's soft punishment of length (arXiv 2503.14476, eq. 13): longer answers are worth gradually less."""

from __future__ import annotations

from art.wire.algorithm import OverlongSpec


def overlong_penalty(tokens: int, spec: OverlongSpec) -> float:
    """What is added to the reward of a rollout that sampled so many tokens: from 0 down to -penalty.

    >>> spec = OverlongSpec(limit=100, band=20)
    >>> [overlong_penalty(n, spec) for n in (80, 85, 100, 500)]
    [0.0, -0.25, -1.0, -1.0]
    """
    over = max(0, tokens - (spec.limit - spec.band)) / spec.band
    return -spec.penalty * min(1.0, over) if over else 0.0
