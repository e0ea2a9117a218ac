"""One group before a judge that may fail in any way.

What it leaves out or gets wrong is asked for again, by its ids alone; what is still missing is asked about
in smaller groups, in which the best and the worst that are already scored show the scale; what is missing
then is `Unscored`. No score is ever made up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from art.errors import (
    BudgetExceededError,
    ConfigurationError,
    LlmAnswerError,
    LlmError,
    LlmRefusedError,
    LlmTooLongError,
)
from art.rewards.judging.presentation import exhibit
from art.rewards.judging.ruler_answer import Answer, Given, read_answer
from art.rewards.judging.ruler_prompt import Question, request, user_text
from art.rewards.judging.view import View
from art.rewards.judging.views import shortened
from art.rewards.reward import Score
from art.types import Unscored

if TYPE_CHECKING:
    from art.rewards.judging.ruler_scorer import RulerScorer

SHORTER = (1000, 200)
"""Characters of a tool output where one trajectory alone is too long for the judge."""
TOO_LONG_SHARE = 0.9
"""Of a question that the judge found too long: no question is longer from then on."""
NEVER_TOO_LONG = 2000
"""Characters: a judge that finds this too long means something else, and its limit is not lowered."""
FAILED_QUESTIONS = 6
"""After so many questions about one group without a usable answer, the rest of it stays unscored."""

Asked = tuple[dict[str, int], Question]
"""Whom the ids mean, by index, and what to ask."""


class Sitting:
    """One group before the judge: what is known so far, by index of `views`."""

    def __init__(self, scorer: RulerScorer, views: Sequence[View], salt: str) -> None:
        self._scorer, self._views, self._salt = scorer, views, salt
        self._given: dict[int, Given] = {}
        self._reasons: dict[int, str] = {}
        self._failed = 0
        self.rejection: ConfigurationError | None = None
        """The judge's endpoint refused a question as a bad request, though it answered others before."""

    def score(self, i: int) -> Score:
        """What trajectory `i` got, or why it got nothing."""
        name = self._scorer.name
        if i not in self._given:
            return Score(value=Unscored(f"{name}: {self._reasons.get(i, 'the judge gave no score')}"))
        given = self._given[i]
        return Score(
            value=given.score,
            explanation=given.explanation,
            metrics={f"{name}_score": given.score},
            notes=(given.note,) if given.note else (),
        )

    async def score_part(self, part: Sequence[int], order: Sequence[int] | None = None) -> None:
        """Score these, in one question if the judge can, else in smaller ones."""
        if not part:
            return
        if self._failed >= FAILED_QUESTIONS:
            unknown = [i for i in part if i not in self._reasons]
            self._give_up(unknown, f"{self._failed} questions about its group had no usable answer")
            return
        asked = self._question(part, order)
        try:
            if asked is not None:
                await self._ask(*asked)
        except LlmTooLongError as error:
            if asked is not None and self._remember_length(asked[1]):
                # What is built now is shorter.
                await self.score_part([i for i in part if i not in self._given])
                return
            self._failed += 1
            self._give_up(part, str(error))
        except (LlmRefusedError, LlmAnswerError) as error:
            self._failed += 1
            self._give_up(part, str(error))
        except ConfigurationError as error:
            if not self._scorer.answered:
                raise
            self._failed += 1
            self.rejection = error
            self._give_up(part, str(error))
        except BudgetExceededError as error:
            if not self._given:
                raise
            self._give_up(part, str(error))
            return
        except LlmError as error:
            # The channel asked several times already: smaller questions would only wait as long.
            self._give_up(part, str(error))
            return
        await self._score_smaller_parts(part)

    def _remember_length(self, question: Question) -> bool:
        """Whether the limit on questions is lower now than this one."""
        length = len(user_text(question))
        if length <= NEVER_TOO_LONG:
            return False
        self._scorer.max_prompt_chars = min(self._scorer.max_prompt_chars, int(length * TOO_LONG_SHARE))
        return True

    async def _score_smaller_parts(self, part: Sequence[int]) -> None:
        missing = [i for i in part if i not in self._given]
        if len(missing) < len(part):
            await self.score_part(missing)
        elif len(part) > 1:
            half = (len(part) + 1) // 2
            await self.score_part(part[:half])
            await self.score_part(part[half:])

    def _question(self, part: Sequence[int], order: Sequence[int] | None) -> Asked | None:
        """What to ask, and whom the ids mean; None where it is too long."""
        scale = self._scale()
        for shown in ([*scale, *part], list(order or part)) if scale else (list(order or part),):
            views = {i: self._views[i] for i in shown}
            if (asked := self._laid_out(views, part, fixed=order is not None)) is not None:
                return asked
        for chars in SHORTER if len(part) == 1 else ():
            views = {i: shortened(self._views[i], chars) for i in part}
            if (asked := self._laid_out(views, part, fixed=True)) is not None:
                return asked
        self._give_up(part, f"it is longer than the {self._scorer.max_prompt_chars} characters of a question")
        return None

    def _laid_out(self, views: Mapping[int, View], part: Sequence[int], *, fixed: bool) -> Asked | None:
        places = range(len(views)) if fixed else None
        shown = exhibit(list(views.values()), order=places, salt=self._salt)
        names = dict(sorted(zip(shown.ids, views, strict=True)))
        question = Question(
            shown=shown,
            wanted={name: "" for name, i in names.items() if i in part},
            known={name: self._given[i].score for name, i in names.items() if i not in part},
        )
        fits = len(user_text(question)) <= self._scorer.max_prompt_chars
        return (names, question) if fits else None

    async def _ask(self, names: Mapping[str, int], question: Question) -> None:
        """Ask; then once more for the ids that were left out or have no usable score."""
        answer = await self._answer(question)
        self._keep(names, answer)
        if not answer.problems:
            return
        known = {name: one.score for name, one in answer.given.items()}
        again = Question(
            shown=question.shown,
            wanted=answer.problems,
            known=dict(sorted((dict(question.known) | known).items())),
        )
        self._keep(names, await self._answer(again))

    async def _answer(self, question: Question) -> Answer:
        asked = request(question, self._scorer.rubric, salt=self._salt)
        answer = await self._scorer.channel.ask_json(asked, lambda said: read_answer(said, question.wanted))
        self._scorer.answered = True
        return answer

    def _keep(self, names: Mapping[str, int], answer: Answer) -> None:
        for name, one in answer.given.items():
            said = one.explanation
            for other, i in names.items():
                said = said.replace(
                    other, f"#{i + 1}"
                )  # the ids mean nothing afterwards, places in the group do
            self._given[names[name]] = replace(one, explanation=said)
        self._reasons |= {names[name]: problem for name, problem in answer.problems.items()}

    def _scale(self) -> list[int]:
        """The worst and the best of those that are scored."""
        ranked = sorted(self._given, key=lambda i: self._given[i].score)
        return ranked if len(ranked) < 2 else [ranked[0], ranked[-1]]

    def _give_up(self, part: Sequence[int], reason: str) -> None:
        self._reasons |= {i: reason for i in part if i not in self._given}
