"""What a judge is behind its face: something that scores views of trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from art.rewards.judging.view import View
from art.rewards.reward import Score


class Scorer(Protocol):
    """RULER, a rubric or a tournament, with the model that it asks."""

    name: str

    async def score(
        self, views: Sequence[View], *, order: Sequence[int] | None = None, salt: str = ""
    ) -> list[Score]:
        """One score for each view, in the order of `views`.

        order: in which order the judge is shown them; None: shuffled. salt: a second opinion has another one,
        and is asked for anew.
        """
        ...
