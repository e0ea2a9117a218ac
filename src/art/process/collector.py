"""The garbage collector rests while a process loads: nothing of what it imports then is garbage, and looking
through it all again and again takes a fifth of a worker's start.
"""

from __future__ import annotations

import gc


def rest() -> None:
    """Until `wake`, nothing is looked through."""
    gc.disable()


def wake() -> None:
    """Collect from now on. What is there already is never looked through again."""
    gc.freeze()
    gc.enable()
