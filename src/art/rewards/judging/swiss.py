"""Who plays whom in a tournament that is too large for everybody to play everybody."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence


def swiss_rounds(players: int) -> int:
    """Enough to tell the best from the rest, and two more for the order of the middle."""
    return math.ceil(math.log2(players)) + 2


def swiss_pairs(
    points: Sequence[float], played: Collection[frozenset[int]], rested: Collection[int]
) -> list[tuple[int, int]]:
    """The games of a round: neighbours by points that have not met, places of equal points by number.

    With an odd number of players the last who has not rested yet rests; nobody plays twice in a round.
    """
    table = sorted(range(len(points)), key=lambda i: (-points[i], i))
    if len(table) % 2:
        table.remove(next((i for i in reversed(table) if i not in rested), table[-1]))
    pairs = []
    while len(table) > 1:
        first = table.pop(0)
        second = next((i for i in table if frozenset((first, i)) not in played), None)
        if second is not None:
            table.remove(second)
            pairs.append((first, second))
    return pairs
