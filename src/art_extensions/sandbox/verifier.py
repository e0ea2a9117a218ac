"""What every verifier is: a reward that compares an answer with what is expected, by a rule."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from art.errors import ConfigurationError, VerifierError
from art.rewards.reward import Reward, Score, results_or_first_error
from art.trajectories import Trajectory, TrajectoryGroup
from art.types import Unscored

log = logging.getLogger(__name__)
Answer = Callable[[Trajectory], str | None]
END_OF_THOUGHT = "</think>"


def last_answer(trajectory: Trajectory) -> str | None:
    """The text of the assistant's last message, without what it thought before; None: it said nothing."""
    for message in reversed(trajectory.messages()):
        if message["role"] != "assistant":
            continue
        content: Any = message.get("content")
        if isinstance(content, list):
            content = "\n".join(part["text"] for part in content if "text" in part)
        text = str(content or "").rpartition(END_OF_THOUGHT)[2].strip()
        return text or None
    return None


class Verifier(Reward):
    """A rule. `expected` is what every answer is compared with, or a function that gives it for a trajectory;
    `key` names the metadata that holds it, of the trajectory or else of the group.

    Without an answer the reward is 0. What cannot be decided is `Unscored(reason)`: nothing is expected, what
    is expected makes no sense, the process could not be started.
    """

    def __init__(
        self,
        expected: Any = None,
        *,
        key: str | None = None,
        name: str,
        answer: Answer = last_answer,
    ) -> None:
        """answer: what of a trajectory is checked. Raises ConfigurationError unless one of `expected` and
        `key` is given.
        """
        if (expected is None) == (key is None):
            raise ConfigurationError(
                f"{type(self).__name__}: give either `expected=` (a value, or a function of the trajectory) "
                f"or `key=` (a name in the metadata); got expected={expected!r}, key={key!r}"
            )
        self.name = name
        self._expected, self._key, self._answer = expected, key, answer

    @abstractmethod
    async def verify(self, answer: str, expected: Any) -> Score:
        """The score of one answer. Raises VerifierError where it cannot be decided."""

    async def scores(self, group: TrajectoryGroup) -> Sequence[Score]:
        calls = [self._score_trajectory(trajectory, group) for trajectory in group.trajectories]
        return results_or_first_error(await asyncio.gather(*calls, return_exceptions=True))

    async def _score_trajectory(self, trajectory: Trajectory, group: TrajectoryGroup) -> Score:
        try:
            answer = self._call_user_function(self._answer, trajectory)
            if answer is None:
                return Score(value=0.0, explanation="no answer")
            return await self.verify(answer, self._expected_of(trajectory, group))
        except VerifierError as error:
            return Score(value=Unscored(f"{self.name}: {error}"))

    def _call_user_function(self, function: Callable[[Trajectory], Any], trajectory: Trajectory) -> Any:
        """Raises VerifierError for whatever the user's function raises."""
        try:
            return function(trajectory)
        except Exception as error:
            log.warning("reward %r: %r failed: %s: %s", self.name, function, type(error).__name__, error)
            raise VerifierError(f"{function!r} failed: {type(error).__name__}: {error}") from error

    def _expected_of(self, trajectory: Trajectory, group: TrajectoryGroup) -> Any:
        if self._key is None:
            return (
                self._call_user_function(self._expected, trajectory)
                if callable(self._expected)
                else self._expected
            )
        found = trajectory.metadata.get(self._key, group.metadata.get(self._key))
        if found is None:
            raise VerifierError(
                f"neither the trajectory's nor the group's metadata has {self._key!r}, which is expected; "
                f"they have {', '.join([*trajectory.metadata, *group.metadata]) or 'nothing'}"
            )
        return found
