"""Mathematical equality."""

from __future__ import annotations

from typing import Any

from art.rewards.reward import Score
from art.rewards.verifiers.checked import CheckedVerifier


class MathMatch(CheckedVerifier):
    """1 where the answer's last expression equals the expected one, by `math-verify`; else 0.

    LaTeX (`\\\\boxed{...}` first, then `$...$`) and plain numbers are read: 1/2, 0.5, 50\\\\% and
    $\\\\frac{2}{4}$ are equal. float_rounding: decimal places that count (6). strict: variables must have the
    same names.
    """

    check = "math"
    package = "math_verify"

    def __init__(
        self,
        expected: Any = None,
        *,
        key: str | None = None,
        name: str = "math",
        float_rounding: int = 6,
        strict: bool = True,
        **settings: Any,
    ) -> None:
        """settings: answer, limits, at_once, isolation, over_limit."""
        super().__init__(expected, key=key, name=name, **settings)
        self._options = {"float_rounding": float_rounding, "strict": strict}

    async def verify(self, answer: str, expected: Any) -> Score:
        return await self._ask(answer, str(expected), **self._options)
