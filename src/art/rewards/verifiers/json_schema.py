"""A JSON schema that the answer must fit."""

from __future__ import annotations

import json
import re
from typing import Any

from art.errors import VerifierError
from art.rewards.reward import Score
from art.rewards.verifiers.checked import CheckedVerifier

FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*?)```", re.DOTALL)


class JsonSchemaMatch(CheckedVerifier):
    """1 where the answer is JSON that fits the schema (a dict, or its text), else 0; the explanation says
    where it does not.

    The answer is the last block between ``` marks, or all of it. Formats ("date", ...) count. References to
    other addresses are never fetched.
    """

    check = "json_schema"
    package = "jsonschema"

    def __init__(
        self, expected: Any = None, *, key: str | None = None, name: str = "json_schema", **settings: Any
    ) -> None:
        """settings: answer, limits, at_once, isolation, over_limit."""
        super().__init__(expected, key=key, name=name, **settings)

    async def verify(self, answer: str, expected: Any) -> Score:
        if isinstance(expected, str):
            try:
                expected = json.loads(expected)
            except ValueError as error:
                raise VerifierError(f"schema {expected!r} is no JSON: {error}") from error
        if not isinstance(expected, dict | bool):
            raise VerifierError(f"schema {expected!r} is neither an object nor true or false")
        blocks = FENCED.findall(answer)
        return await self._ask(blocks[-1] if blocks else answer, expected)
