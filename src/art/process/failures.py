"""Failures that a program forgives: the log has the first traceback of each kind, and how many there were.

A kind is a class of error raised at one place. Its traceback is logged once in a program, not once in each of
a thousand rollouts; the count is logged each time.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections import Counter
from functools import lru_cache
from typing import Any

_log = logging.getLogger(__name__)

MOST_KINDS = 1000
"""That are remembered."""
MOST_LETTERS = 200
"""The limit in letters of an example's message."""


class ForgivenFailures:
    """The failures of one gather, or of one run."""

    def __init__(self) -> None:
        self._counts = Counter[str]()
        self._examples: dict[str, str] = {}

    def add(self, error: Any) -> None:
        """Counts a failure: an exception, or the record of one (`type`, `message`, `traceback`)."""
        if isinstance(error, BaseException):
            name, message = type(error).__name__, str(error)
            text = "".join(traceback.format_exception(error))
        else:
            name, message, text = _class_name(error.type), error.message, error.traceback
        places = _PLACE.findall(text)
        place = places[-1] if places else ""
        self._counts[name] += 1
        self._examples.setdefault(name, message)
        seen = _seen_kinds()
        if (name, place) not in seen and len(seen) < MOST_KINDS:
            seen.add((name, place))
            _log.warning(
                "a rollout failed and is left out: %s: %s. Later failures of this kind are counted, without "
                "their traceback\n%s",
                name,
                _cut(message),
                text.rstrip(),
            )

    def log_count(self, rollouts: int) -> None:
        """Logs how many of so many rollouts failed, and forgets them. Nothing failed: no line."""
        if self._counts:
            kinds = (f"{count} {name} ({_cut(self._examples[name])})" for name, count in self._counts.items())
            failed = self._counts.total()
            _log.warning("%d of %d rollouts failed and are left out: %s", failed, rollouts, ", ".join(kinds))
        self._counts.clear()
        self._examples.clear()


@lru_cache(maxsize=1)
def _seen_kinds() -> set[tuple[str, str]]:
    """Returns the kinds whose traceback this program has logged."""
    return set()


_PLACE = re.compile(r'^ *File "[^"]*", line \d+', re.M)


def _class_name(text: str) -> str:
    """Returns the class's own name.

    >>> _class_name("<class 'openai.APITimeoutError'>")
    'APITimeoutError'
    """
    return text.rstrip("'>").rpartition(".")[2].removeprefix("<class '")


def _cut(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= MOST_LETTERS else f"{line[:MOST_LETTERS]}..."
