"""A rubric: each trajectory by itself, by weighted criteria, each with its verdict and reason.

Scores are absolute: they do not depend on the rest of the group, and rise when the whole policy gets better.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence

from art.errors import ARTError, ConfigurationError, LlmAnswerError, LlmError, LlmRefusedError
from art.llm.channel import Channel
from art.rewards.judging.criterion import Criterion, criteria_of
from art.rewards.judging.presentation import signature
from art.rewards.judging.questions import Experience
from art.rewards.judging.rubric_prompt import STANDARDS, read_verdicts, rubric_request
from art.rewards.judging.ruler_answer import Given
from art.rewards.judging.ruler_scorer import PROMPT_TOKENS
from art.rewards.judging.view import View
from art.rewards.reward import Score
from art.types import Unscored

QUESTIONS = 3
"""About one trajectory: the first, and about what has no verdict after it."""


class RubricScorer:
    """Scores views by asking a judge about one at a time: a question for each, equal ones once."""

    def __init__(
        self,
        channel: Channel,
        criteria: Iterable[Criterion] | Mapping[str, str],
        *,
        standards: str = STANDARDS,
        name: str = "rubric",
        max_prompt_tokens: int = PROMPT_TOKENS,
    ) -> None:
        """criteria: or {name: description}. standards: what holds for all of them.

        max_prompt_tokens: of one question, estimated; longer tool outputs are digested further, and a
        trajectory that is too long even so is unscored. Raises ConfigurationError.
        """
        self.criteria = criteria_of(criteria)
        if not isinstance(standards, str) or not standards.strip():
            raise ConfigurationError(f"standards={standards!r}: say how to judge, or leave it out")
        self.channel, self.standards, self.name = channel, standards, name
        self._experience = Experience(max_prompt_tokens)

    async def score(
        self, views: Sequence[View], *, order: Sequence[int] | None = None, salt: str = ""
    ) -> list[Score]:
        """One score for each view: the weighted mean of its criteria's, which are in its metrics as
        `<name>/<criterion>`. `Unscored(reason)` where a criterion has no verdict.

        order: says nothing here; in which order the criteria stand is drawn from the trajectory and `salt`.
        Raises ConfigurationError, and BudgetExceededError where nothing could be asked.
        """
        firsts: dict[str, View] = {}
        keys = [signature(view) for view in views]
        for key, view in zip(keys, views, strict=True):
            firsts.setdefault(key, view)
        judged = await self._experience.ask_all(
            self._experience.ask_about([view], lambda fits: self._judge(fits[0], salt))
            for view in firsts.values()
        )
        by_key = dict(zip(firsts, map(self._or_unscored, judged), strict=True))
        return [by_key[key] for key in keys]

    async def _judge(self, view: View, salt: str) -> Score:
        """Ask until each criterion has a verdict, a few times at most; in another order each time.

        Raises LlmError where the first question got no answer for other reasons than its content.
        """
        dice = random.Random(hashlib.sha256(f"{salt}\n{signature(view)}".encode()).digest())
        missing = dice.sample(self.criteria, len(self.criteria))
        given: dict[str, Given] = {}
        why = ""
        for _ in range(QUESTIONS):
            try:
                further, problems = await self._ask(view, missing, salt)
            except LlmError as error:
                again = isinstance(error, LlmRefusedError | LlmAnswerError)
                if not given and not again:
                    raise
                why = f"no verdict by {', '.join(one.name for one in missing)}: {error}"
                if not again:
                    break
            else:
                given |= further
                why = f"no verdict ({'; '.join(f'{name}: {said}' for name, said in problems.items())})"
                missing = [one for one in missing if one.name in problems]
                if not missing:
                    return self._total(given)
            missing.reverse()
        return self._unscored(why)

    async def _ask(
        self, view: View, criteria: Sequence[Criterion], salt: str
    ) -> tuple[dict[str, Given], dict[str, str]]:
        """Verdicts by criterion, and what is wrong with the others."""
        request = rubric_request(view, criteria, standards=self.standards, salt=salt)
        names = [one.name for one in criteria]
        answer = await self.channel.ask_json(request, lambda said: read_verdicts(said, names))
        return answer.given, answer.problems

    def _total(self, given: Mapping[str, Given]) -> Score:
        weights = sum(one.weight for one in self.criteria)
        value = sum(one.weight * given[one.name].score for one in self.criteria) / weights
        verdicts = [(one.name, given[one.name]) for one in self.criteria]
        return Score(
            value=value,
            explanation="\n".join(
                f"{name} {verdict.score:g}: {verdict.explanation}" for name, verdict in verdicts
            ),
            metrics={f"{self.name}/{name}": verdict.score for name, verdict in verdicts},
            notes=tuple(f"{name}: {verdict.note}" for name, verdict in verdicts if verdict.note),
        )

    def _or_unscored(self, judged: Score | ARTError) -> Score:
        return judged if isinstance(judged, Score) else self._unscored(str(judged))

    def _unscored(self, reason: str) -> Score:
        return Score(value=Unscored(f"{self.name}: {reason}"))
