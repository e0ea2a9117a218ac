"""How the learning rate goes over a run: a linear rise within a linear fall, and no jump where the run is
given more steps.

The schedule is recorded with the run, as legs: (the step that a leg begins at, the step that its fall ends
at). A run that is resumed with another number of steps gets a further leg, which begins at the rate that was
reached and falls, or stays, from there to the same share at the new end.
"""

from __future__ import annotations

from collections.abc import Sequence

Leg = tuple[int, int]


def legs_to(total: int, recorded: Sequence[Sequence[int]], *, done: int) -> tuple[Leg, ...]:
    """The legs of a run that has made `done` steps by the recorded ones, and is to have `total`.

    >>> legs_to(50, [], done=0), legs_to(50, [(0, 50)], done=20)
    (((0, 50),), ((0, 50),))
    >>> legs_to(100, [(0, 50)], done=50)
    ((0, 50), (50, 100))
    """
    legs = tuple((int(first), int(last)) for first, last in recorded)
    if not legs or not done:
        return ((0, total),)
    return legs if legs[-1][1] == total else (*legs, (done, total))


def share_at(step: int, legs: Sequence[Leg], *, warmup_steps: int, final_share: float) -> float:
    """The share of the full rate that `step` (from 0) has.

    >>> straight = [share_at(step, [(0, 4)], warmup_steps=0, final_share=0.5) for step in range(5)]
    >>> longer = [share_at(step, [(0, 4), (2, 6)], warmup_steps=0, final_share=0.5) for step in range(7)]
    >>> straight, longer
    ([1.0, 0.875, 0.75, 0.625, 0.5], [1.0, 0.875, 0.75, 0.6875, 0.625, 0.5625, 0.5])
    """
    level = 1.0
    ends = [first for first, _ in legs[1:]] + [step]
    for (first, last), end in zip(legs, ends, strict=True):
        if step < first:
            break
        passed = (min(step, end) - first) / max(1, last - first)
        level -= (level - final_share) * min(1.0, passed)
    return level * min(1.0, (step + 1) / (warmup_steps + 1))
