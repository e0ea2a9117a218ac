"""RULER: trajectories of one goal scored beside each other. `Sitting` has what happens if the judge fails."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from art.errors import ConfigurationError
from art.llm.channel import Channel
from art.rewards.judging.presentation import signature
from art.rewards.judging.ruler_prompt import DEFAULT_RUBRIC
from art.rewards.judging.ruler_sitting import Sitting
from art.rewards.judging.view import View
from art.rewards.reward import Score
from art.types import Unscored

log = logging.getLogger(__name__)

PROMPT_TOKENS = 100_000
CHARS_PER_TOKEN = 3.5
"""For an estimate: English has about 4, code and other languages fewer."""
REJECTED_GROUPS = 3
"""So many groups in a row may be refused as bad requests, by a judge that worked, before that is an error."""


class RulerScorer:
    """Scores views by asking a judge through a channel."""

    def __init__(
        self,
        channel: Channel,
        *,
        rubric: str = DEFAULT_RUBRIC,
        name: str = "ruler",
        max_prompt_tokens: int = PROMPT_TOKENS,
    ) -> None:
        """rubric: what good means. max_prompt_tokens: of one question, estimated; larger groups are split.

        Raises ConfigurationError for an empty rubric or a limit below 1.
        """
        if not isinstance(rubric, str) or not rubric.strip():
            raise ConfigurationError(f"rubric={rubric!r}: say in a sentence or more what a good attempt is")
        if max_prompt_tokens < 1:
            raise ConfigurationError(f"max_prompt_tokens={max_prompt_tokens!r}: must be at least 1")
        self.name, self.rubric, self.channel = name, rubric, channel
        self.max_prompt_chars = int(max_prompt_tokens * CHARS_PER_TOKEN)
        """Of one question; lowered where the judge says that one was too long."""
        self.answered = False
        """Whether it ever was of use: then a bad request says something of the group, not of the options."""
        self._rejected = 0
        self._told_of_equals = False

    async def score(
        self, views: Sequence[View], *, order: Sequence[int] | None = None, salt: str = ""
    ) -> list[Score]:
        """One score for each view, `Unscored(reason)` where the judge gave none.

        Raises ConfigurationError (no key, unknown model) before the judge ever answered, or when it refuses
        group after group; BudgetExceededError where nothing could be asked.
        """
        signatures = [signature(view) for view in views]
        first = {name: i for i, name in reversed(list(enumerate(signatures)))}
        if len(views) > 1 and len(first) == 1:
            # A policy that settles makes many such groups: said aloud once.
            log.log(
                logging.DEBUG if self._told_of_equals else logging.WARNING,
                "%s: all %d trajectories are equal; the judge scores one, with nothing to compare it to",
                self.name,
                len(views),
            )
            self._told_of_equals = True
        sitting = Sitting(self, views, salt)
        # In an order of their own: in which order the attempts ended must not make another question.
        distinct = [first[name] for name in sorted(first)]
        await sitting.score_part(distinct, [i for i in order if i in distinct] if order is not None else None)
        scores = [sitting.score(first[name]) for name in signatures]
        self._notice(sitting, scores)
        return scores

    def _notice(self, sitting: Sitting, scores: Sequence[Score]) -> None:
        reasons = [score.value.reason for score in scores if isinstance(score.value, Unscored)]
        if reasons:
            log.warning("%d of %d trajectories have no score: %s", len(reasons), len(scores), reasons[0])
        if sitting.rejection is None or len(reasons) < len(scores):
            self._rejected = 0
            return
        self._rejected += 1
        if self._rejected >= REJECTED_GROUPS:
            raise sitting.rejection
