"""Verifiers whose rule runs in a limited process that has its library loaded."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, ClassVar

from art.errors import ConfigurationError, VerifierError
from art.rewards.reward import Score
from art.rewards.verifiers.limits import MB, Limits
from art.rewards.verifiers.pool import Isolation, Pool
from art.rewards.verifiers.verifier import Answer, Verifier, last_answer

LIMITS = Limits(wall_s=20.0, cpu_s=4, memory_bytes=1024 * MB, processes=8)
"""Of one check."""


class CheckedVerifier(Verifier):
    """A rule of `confined/checks.py`. A check that exceeds its limits cannot be decided: `Unscored`, unless
    `over_limit` says what such an answer gets.
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
        limits: Limits = LIMITS,
        at_once: int | None = None,
        isolation: Isolation = "best",
        over_limit: float | None = None,
    ) -> None:
        """at_once: how many processes check side by side (the machine's cores). over_limit: 0.0 where only
        the answer can be why a check exceeds its limits, so that none escapes by being too hard to check.
        Raises ConfigurationError where the package is not installed.
        """
        super().__init__(expected, key=key, name=name, answer=answer)
        if self.package is not None and find_spec(self.package) is None:
            raise ConfigurationError(
                f"{type(self).__name__} needs {self.package!r}: pip install "
                "'agent-reinforcement-trainer[verifiers]'"
            )
        self._limits, self._over_limit = limits, over_limit
        self._pool = Pool(self.check, limits, at_once=at_once, name=name, isolation=isolation)

    def close(self) -> None:
        """End its processes. Otherwise they end with this object, or with the program."""
        self._pool.close()

    async def _ask(self, answer: str, expected: Any, **options: Any) -> Score:
        reply = await self._pool.ask(answer, expected, options)
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
