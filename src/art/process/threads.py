"""How many CPU threads a process that computes should use."""

from __future__ import annotations

SMALL_MODEL_PARAMETERS = 20_000_000
"""Parameters. Below, the matrices are too small to be worth a second thread."""


def cpu_threads(chosen: int | None, parameters: int) -> int | None:
    """The number to set, or None to leave torch's own choice (a thread a core).

    A small model's step is thousands of tiny parallel regions. With as many threads as cores, each waits for
    the other at every region's end, spinning; one busy neighbour on the machine then makes a step of one
    second take a minute. With one thread the step was the faster even on a quiet machine.
    """
    if chosen is not None:
        return chosen
    return 1 if parameters < SMALL_MODEL_PARAMETERS else None
