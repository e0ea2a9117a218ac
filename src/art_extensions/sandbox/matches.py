"""Verifiers that compare an answer: exact match, a pattern, mathematical equality, a JSON schema.

All but the exact match run in a sandbox that has their library loaded.
"""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar

from art.errors import ConfigurationError, VerifierError, require_extra
from art.extensions import SANDBOX, load_extension
from art.rewards.reward import Score
from art_extensions.sandbox.limits import MB, IsolationLevel, Limits, Sandbox
from art_extensions.sandbox.verifier import Answer, Verifier, last_answer

CHECK_LIMITS = Limits(wall_s=20.0, cpu_s=4, memory_bytes=1024 * MB, processes=8)
"""The limits of one check."""


class CheckedVerifier(Verifier):
    """A rule that is checked in a sandbox. A check that exceeds its limits cannot be decided: `Unscored`,
    unless `over_limit` says what such an answer gets.
    """

    check: ClassVar[str]
    package: ClassVar[str | None] = None
    """What must be installed, of the extra `verifiers`."""

    def __init__(
        self,
        expected: Any = None,
        *,
        key: str | None = None,
        name: str,
        answer: Answer = last_answer,
        limits: Limits = CHECK_LIMITS,
        at_once: int | None = None,
        isolation: IsolationLevel = "best",
        over_limit: float | None = None,
    ) -> None:
        """at_once: how many processes check side by side (the machine's cores). over_limit: 0.0 where only
        the answer can be why a check exceeds its limits, so that none escapes by being too hard to check.
        Raises MissingExtraError where the package is not installed, ConfigurationError where no extension
        gives a sandbox.
        """
        super().__init__(expected, key=key, name=name, answer=answer)
        if self.package is not None:
            require_extra("verifiers", type(self).__name__)
        self._limits, self._over_limit = limits, over_limit
        self._sandbox: Sandbox = load_extension(SANDBOX, "processes")(
            self.check, limits, at_once=at_once, name=name, isolation=isolation
        )

    def close(self) -> None:
        """End its processes. Otherwise they end with this object, or with the program."""
        self._sandbox.close()

    async def _ask(self, answer: str, expected: Any, **options: Any) -> Score:
        reply = await self._sandbox.ask(answer, expected, options)
        if "value" in reply:
            return Score(value=reply["value"], explanation=reply["why"])
        if "unusable" in reply:
            raise VerifierError(reply["unusable"])
        limit = {
            "deadline": f"took longer than {self._limits.wall_s:g} s",
            "cpu": f"took more than {self._limits.cpu_s} s of CPU time",
            "memory": f"needed more than {self._limits.memory_bytes // MB} MB",
        }
        said = f"the check {limit.get(reply['fate'], f'died: {reply}')}"
        if self._over_limit is not None and reply["fate"] in limit:
            return Score(value=self._over_limit, explanation=said)
        raise VerifierError(said)


class ExactMatch(Verifier):
    """Scores 1 if the answer is the expected text, or one of several; else 0.

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


KNOWN_FLAGS = int(re.ASCII | re.IGNORECASE | re.MULTILINE | re.DOTALL | re.VERBOSE)


class RegexMatch(CheckedVerifier):
    """Scores 1 if the pattern matches somewhere in the answer (whole=True: all of it), else 0.

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
        if int(flags) & ~KNOWN_FLAGS:
            raise ConfigurationError(
                f"RegexMatch(flags={flags!r}): known are re.ASCII, re.IGNORECASE, re.MULTILINE, re.DOTALL, "
                "re.VERBOSE"
            )
        super().__init__(expected, key=key, name=name, **settings)
        self._options = {"whole": whole, "flags": int(flags)}

    async def verify(self, answer: str, expected: Any) -> Score:
        return await self._ask(answer, str(expected), **self._options)


class MathMatch(CheckedVerifier):
    """Scores 1 if the answer's last expression equals the expected one, by `math-verify`; else 0.

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


FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*?)```", re.DOTALL)


class JsonSchemaMatch(CheckedVerifier):
    """Scores 1 if the answer is JSON that fits the schema (a dict, or its text), else 0; the explanation
    names the violation.

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
