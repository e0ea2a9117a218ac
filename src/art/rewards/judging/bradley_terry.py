"""From games won and lost to strengths: the model of Bradley and Terry (1952). Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

ROUNDS = 200
_PRIOR = 0.5
"""Each has half a win and half a loss against one of strength 1: strengths stay finite."""


def win_rates(players: int, results: Mapping[tuple[int, int], float]) -> list[float]:
    """The share of games that each would win against all others, 0 to 1.

    results: (i, j) -> 1 where i won, 0 where j won, 0.5 for a tie; each pair at most once. Where all pairs
    have played it is what they won; otherwise what their strengths say (Hunter 2004, MM algorithm).
    """
    if players < 2:
        return [0.5] * players
    wins = [0.0] * players
    for (i, j), result in results.items():
        wins[i] += result
        wins[j] += 1 - result
    if len(results) == players * (players - 1) // 2:
        return [won / (players - 1) for won in wins]
    strength = _strengths(wins, list(results))
    return [
        fmean(strength[i] / (strength[i] + strength[j]) for j in range(players) if j != i)
        for i in range(players)
    ]


def _strengths(wins: Sequence[float], games: Sequence[tuple[int, int]]) -> list[float]:
    strength = [1.0] * len(wins)
    opponents: list[list[int]] = [[] for _ in wins]
    for i, j in games:
        opponents[i].append(j)
        opponents[j].append(i)
    for _ in range(ROUNDS):
        strength = [
            (wins[i] + _PRIOR)
            / (2 * _PRIOR / (strength[i] + 1) + sum(1 / (strength[i] + strength[j]) for j in opponents[i]))
            for i in range(len(wins))
        ]
    return strength
