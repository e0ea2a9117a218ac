"""A pattern that the answer must match."""

from __future__ import annotations

import re
from typing import Any

from art.errors import ConfigurationError
from art.rewards.reward import Score
from art.rewards.verifiers.checked import CheckedVerifier

KNOWN = int(re.ASCII | re.IGNORECASE | re.MULTILINE | re.DOTALL | re.VERBOSE)


class RegexMatch(CheckedVerifier):
    """1 where the pattern matches somewhere in the answer (whole=True: all of it), else 0.

    Flags are those of `re`. It runs in a limited process: a pattern that backtracks for ever ends there, and
    the trajectory is unscored.
    """

    check = "regex"

    def __init__(
        self,
        expected: Any = None,
        *,
        key: str | None = None,
        name: str = "regex",
        whole: bool = False,
        flags: int = 0,
        **settings: Any,
    ) -> None:
        """settings: answer, limits, at_once, isolation, over_limit. Raises ConfigurationError for what is no
        pattern.
        """
        if isinstance(expected, str):
            try:
                re.compile(expected, flags)
            except re.error as error:
                raise ConfigurationError(f"RegexMatch({expected!r}): {error}") from error
        if int(flags) & ~KNOWN:
            raise ConfigurationError(
                f"RegexMatch(flags={flags!r}): known are re.ASCII, re.IGNORECASE, re.MULTILINE, re.DOTALL, "
                "re.VERBOSE"
            )
        super().__init__(expected, key=key, name=name, **settings)
        self._options = {"whole": whole, "flags": int(flags)}

    async def verify(self, answer: str, expected: Any) -> Score:
        return await self._ask(answer, str(expected), **self._options)
