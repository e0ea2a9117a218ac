"""Guesses at misspelt names, for messages."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str], *, likeness: float = 0.6) -> str:
    """A question, or nothing where no known name is as like as that (0 to 1).

    >>> did_you_mean("lerning_rate", ["learning_rate", "beta"])
    "did you mean 'learning_rate'?"
    """
    close = get_close_matches(name, list(known), n=1, cutoff=likeness)
    return f"did you mean {close[0]!r}?" if close else ""
