"""Exact match."""

from __future__ import annotations

import re
from typing import Any

from art.errors import VerifierError
from art.rewards.reward import Score
from art.rewards.verifiers.verifier import Answer, Verifier, last_answer


class ExactMatch(Verifier):
    """1 where the answer is the expected text, or one of several; else 0.

    White space around both never counts. ignore_case: case does not. ignore_space: nor how much white space
    is between words.
    """

    def __init__(
        self,
        expected: Any = None,
        *,
        key: str | None = None,
        name: str = "exact",
        answer: Answer = last_answer,
        ignore_case: bool = False,
        ignore_space: bool = False,
    ) -> None:
        super().__init__(expected, key=key, name=name, answer=answer)
        self._ignore_case, self._ignore_space = ignore_case, ignore_space

    async def verify(self, answer: str, expected: Any) -> Score:
        wanted = expected if isinstance(expected, list | tuple | set | frozenset) else [expected]
        if not wanted or not all(isinstance(one, str | int | float) for one in wanted):
            raise VerifierError(f"expected {expected!r} is neither a text nor a list of texts")
        equal = self._plain(answer) in {self._plain(str(one)) for one in wanted}
        return Score(
            value=float(equal), explanation="equal" if equal else f"{answer[:100]!r} is not expected"
        )

    def _plain(self, text: str) -> str:
        text = re.sub(r"\s+", " ", text) if self._ignore_space else text
        return (text.casefold() if self._ignore_case else text).strip()
