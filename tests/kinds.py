"""What a long run leaves in memory: the number of objects of each kind, counted again after as many steps."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise


def count_kinds() -> Counter[str]:
    """The objects that the collector knows, by the name of their class, garbage left out."""
    gc.collect()
    return Counter(type(one).__qualname__ for one in gc.get_objects())


def growing_kinds(counts: Sequence[Counter[str]], *, steps: int) -> dict[str, list[int]]:
    """The kinds that rose by about one for each of the steps between two counts, each time. What is made
    once, however late, is none of them.
    """
    rises = [after - before for before, after in pairwise(counts)]
    return {
        kind: [rise[kind] for rise in rises]
        for kind in rises[0]
        if all(rise[kind] >= 0.8 * steps for rise in rises)
    }
