"""The garbage collector rests while a process loads: nothing of what it imports then is garbage, and looking
through it all again and again takes a fifth of a worker's start.
"""

from __future__ import annotations

import gc


def pause_collector() -> None:
    """Until `resume_collector`, nothing is looked through."""
    gc.disable()


def resume_collector() -> None:
    """Collect from now on. What is there already is never looked through again."""
    gc.freeze()
    gc.enable()
