"""Which of some sizes fill a room best."""

from __future__ import annotations

from collections.abc import Sequence


def fullest(sizes: Sequence[int], room: int) -> list[int]:
    """Indices of sizes whose sum is the largest that is at most `room`; large sizes are preferred.

    Subset sum by dynamic programming, the reachable sums as the bits of one integer, so that an item costs
    a shift. Large items come first: they are hard to place later, small ones fill any gap.

    >>> fullest([5, 4, 3, 9], 8)
    [0, 2]
    """
    mask = (1 << (room + 1)) - 1
    order = [index for index in sorted(range(len(sizes)), key=lambda at: -sizes[at]) if sizes[index] <= room]
    reach = [1]
    for index in order:
        reach.append((reach[-1] | reach[-1] << sizes[index]) & mask)
        if reach[-1] >> room:
            break
    total = reach[-1].bit_length() - 1
    chosen = []
    for at in range(len(reach) - 2, -1, -1):
        if not reach[at] >> total & 1:
            chosen.append(order[at])
            total -= sizes[order[at]]
    return sorted(chosen)
