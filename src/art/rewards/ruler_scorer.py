"""RULER: a judge scores the trajectories of one goal beside each other, and may fail in any way.

Its question has instructions, the trajectories side by side and the form of the answer. Its answer is read
with care: scores go to the ids that they name, and only what can be meant as a score counts.

What the judge leaves out or gets wrong is asked for again, by its ids alone; what is still missing is asked
about in smaller groups, in which the best and the worst that are already scored show the scale; what is
missing then is `Unscored`. No score is ever made up.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from art.errors import (
    BudgetExceededError,
    ConfigurationError,
    LlmAnswerError,
    LlmError,
    LlmRefusedError,
    LlmTooLongError,
)
from art.rewards.judge_view import (
    CAUTION,
    JudgeView,
    View,
    block,
    plain_value,
    present_views,
    shortened,
    signature,
)
from art.rewards.llm.channel import Channel
from art.rewards.llm.request import Request
from art.rewards.reward import Score
from art.types import Unscored

DEFAULT_RUBRIC = """\
- A trajectory that reaches its goal always scores clearly higher than one that does not.
- Of two that reach it, the one that gets there more efficiently, without unproductive detours, scores higher.
- If one is only slightly better than another, their scores differ little; if much better, they differ much.
- Progress towards a goal that was not reached may earn partial credit."""
"""What the judge goes by when no rubric is given."""

_TASK = (
    "All of the trajectories below have been given the same goal. Your job is to consider each of them and "
    "give them a score between 0 and 1. Take into consideration your best judgement of the agent's goal."
)
_FORM = (
    "Answer with one JSON object that has an entry for each trajectory that is asked about, named by its id: "
    '{"scores": [{"trajectory_id": "...", "explanation": "...", "score": 0.5}, ...]}'
)


@dataclass(frozen=True, kw_only=True)
class RulerQuestion:
    """The ids of the shown trajectories that the judge must score."""

    shown: JudgeView
    wanted: Mapping[str, str]
    """Id -> what was wrong with the score that it gave before, if it was asked before."""
    known: Mapping[str, float] = field(default_factory=dict)
    """Scores of others that are shown: the scale to keep to."""


def ruler_request(question: RulerQuestion, rubric: str, *, salt: str = "") -> Request:
    """The question as it is sent."""
    return Request(
        messages=(
            {"role": "system", "content": instructions(rubric)},
            {"role": "user", "content": user_text(question)},
        ),
        schema=answer_schema(list(question.wanted)),
        schema_name="scores",
        salt=salt,
    )


def instructions(rubric: str) -> str:
    """The system message. The rubric is the user's own, and trusted."""
    return f"{_TASK}\n\nGrading standards:\n{rubric.strip()}\n\n{CAUTION}\n\n{_FORM}"


def user_text(question: RulerQuestion) -> str:
    """The trajectories; below them, where only some are asked about, which."""
    parts = [question.shown.text]
    if question.known:
        scored = [{"trajectory_id": i, "score": score} for i, score in question.known.items()]
        parts.append(block("already_scored", scored))
    if question.known or any(question.wanted.values()):
        needed = [
            {"trajectory_id": i} | ({"problem": problem} if problem else {})
            for i, problem in question.wanted.items()
        ]
        parts.append(block("scores_needed", needed))
        parts.append("Score only the trajectories under scores_needed, on the scale of those already scored.")
    return "\n\n".join(parts)


def answer_schema(ids: Sequence[str]) -> dict[str, Any]:
    """The answer's JSON schema: no other ids can be named. Without bounds, which some providers refuse."""
    entry = {
        "type": "object",
        "properties": {
            "trajectory_id": {"type": "string", "enum": list(ids)},
            "explanation": {"type": "string"},
            "score": {"type": "number"},
        },
        "required": ["trajectory_id", "explanation", "score"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {"scores": {"type": "array", "items": entry}},
        "required": ["scores"],
        "additionalProperties": False,
    }


SLACK = 0.1
"""A score this far outside of 0 to 1 is clamped; further out, another scale is meant, and it is no score."""
EXPLANATION_CHARS = 4000


@dataclass(frozen=True, kw_only=True)
class GivenScore:
    """A score as the judge gave it, clamped."""

    score: float
    explanation: str = ""
    note: str = ""
    """What was done to it."""


@dataclass(frozen=True, kw_only=True)
class RulerAnswer:
    """The usable part of an answer."""

    scores: dict[str, GivenScore] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    """Ids that were asked about and have no usable score, with what is wrong."""


def read_ruler_answer(answer: Any, wanted: Collection[str]) -> RulerAnswer:
    """The scores of the ids in `wanted`; entries about others are ignored, places mean nothing.

    Raises ValueError, which says what is wrong, where there is not one usable score.
    """
    found: dict[str, GivenScore] = {}
    problems: dict[str, str] = {}
    for entry in _entries(answer):
        identity = str(entry.get("trajectory_id", "")).strip()
        if identity not in wanted:
            continue
        one = _read_score(entry)
        if isinstance(one, str):
            problems[identity] = one
        elif identity in found and found[identity].score != one.score:
            problems[identity] = f"it has two scores, {found[identity].score:g} and {one.score:g}"
        else:
            found[identity] = one
    usable = {identity: one for identity, one in found.items() if identity not in problems}
    lacking = {i: problems.get(i, "it has no score") for i in wanted if i not in usable}
    if not usable:
        details = "; ".join(f"{identity}: {problem}" for identity, problem in lacking.items())
        raise ValueError(f"no usable score for any trajectory ({details}); name them by these ids")
    return RulerAnswer(scores=usable, problems=lacking)


def _entries(answer: Any) -> list[dict[str, Any]]:
    """Raises ValueError."""
    entries = answer.get("scores", [answer]) if isinstance(answer, dict) else answer
    if not isinstance(entries, list):
        raise ValueError('the answer must be {"scores": [...]}, a list with an entry for each trajectory')
    return [entry for entry in entries if isinstance(entry, dict)]


def _read_score(entry: dict[str, Any]) -> GivenScore | str:
    """The score, or what is wrong with it."""
    value = _number(entry.get("score"))
    if value is None:
        return "its score is no number"
    if not -SLACK <= value <= 1 + SLACK:
        return f"its score {value:g} is not between 0 and 1"
    clamped = min(1.0, max(0.0, value))
    return GivenScore(
        score=clamped,
        explanation=str(plain_value(entry.get("explanation") or ""))[:EXPLANATION_CHARS],
        note="" if clamped == value else f"the judge's score {value:g} counts as {clamped:g}",
    )


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


SHORTER = (1000, 200)
"""Characters of a tool output where one trajectory alone is too long for the judge."""
TOO_LONG_SHARE = 0.9
"""The share of the length of a question that was too long for the judge, to which later ones are limited."""
NEVER_TOO_LONG = 2000
"""Characters: a judge that finds this too long means something else, and its limit is not lowered."""
FAILED_QUESTIONS = 6
"""The number of questions about a group without a usable answer after which the rest stays unscored."""

QuestionAndIds = tuple[dict[str, int], RulerQuestion]
"""Whom the ids mean, by index, and what to ask."""


class GroupJudging:
    """One group before the judge: what is known so far, by index of `views`."""

    def __init__(self, scorer: RulerScorer, views: Sequence[View], salt: str) -> None:
        self._scorer, self._views, self._salt = scorer, views, salt
        self._scores: dict[int, GivenScore] = {}
        self._reasons: dict[int, str] = {}
        self._places: dict[int, int] = {}
        """Where each was shown when it was first asked about."""
        self._failed = 0
        self.rejection: ConfigurationError | None = None
        """The judge's endpoint refused a question as a bad request, though it answered others before."""

    def score(self, i: int) -> Score:
        """Returns the score of trajectory `i`, or the reason for its absence."""
        name = self._scorer.name
        if i not in self._scores:
            return Score(value=Unscored(f"{name}: {self._reasons.get(i, 'the judge gave no score')}"))
        given = self._scores[i]
        return Score(
            value=given.score,
            explanation=given.explanation,
            metrics={f"{name}_score": given.score},
            notes=(given.note,) if given.note else (),
            order=self._places.get(i),
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
                await self.score_part([i for i in part if i not in self._scores])
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
            if not self._scores:
                raise
            self._give_up(part, str(error))
            return
        except LlmError as error:
            # The channel asked several times already: smaller questions would only wait as long.
            self._give_up(part, str(error))
            return
        await self._score_smaller_parts(part)

    def _remember_length(self, question: RulerQuestion) -> bool:
        """Returns whether the limit on questions is lower now than this one."""
        length = len(user_text(question))
        if length <= NEVER_TOO_LONG:
            return False
        self._scorer.max_prompt_chars = min(self._scorer.max_prompt_chars, int(length * TOO_LONG_SHARE))
        return True

    async def _score_smaller_parts(self, part: Sequence[int]) -> None:
        missing = [i for i in part if i not in self._scores]
        if len(missing) < len(part):
            await self.score_part(missing)
        elif len(part) > 1:
            half = (len(part) + 1) // 2
            await self.score_part(part[:half])
            await self.score_part(part[half:])

    def _question(self, part: Sequence[int], order: Sequence[int] | None) -> QuestionAndIds | None:
        """Returns the question, and the trajectories of its ids; None if it is too long."""
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

    def _laid_out(
        self, views: Mapping[int, View], part: Sequence[int], *, fixed: bool
    ) -> QuestionAndIds | None:
        places = range(len(views)) if fixed else None
        shown = present_views(list(views.values()), order=places, salt=self._salt)
        names = dict(sorted(zip(shown.ids, views, strict=True)))
        question = RulerQuestion(
            shown=shown,
            wanted={name: "" for name, i in names.items() if i in part},
            known={name: self._scores[i].score for name, i in names.items() if i not in part},
        )
        fits = len(user_text(question)) <= self._scorer.max_prompt_chars
        return (names, question) if fits else None

    async def _ask(self, names: Mapping[str, int], question: RulerQuestion) -> None:
        """Ask; then once more for the ids that were left out or have no usable score."""
        for name, place in zip(question.shown.ids, question.shown.places, strict=True):
            if name in question.wanted:
                self._places.setdefault(names[name], place)
        answer = await self._answer(question)
        self._record_scores(names, answer)
        if not answer.problems:
            return
        known = {name: one.score for name, one in answer.scores.items()}
        again = RulerQuestion(
            shown=question.shown,
            wanted=answer.problems,
            known=dict(sorted((dict(question.known) | known).items())),
        )
        self._record_scores(names, await self._answer(again))

    async def _answer(self, question: RulerQuestion) -> RulerAnswer:
        asked = ruler_request(question, self._scorer.rubric, salt=self._salt)
        answer = await self._scorer.channel.ask_json(
            asked, lambda said: read_ruler_answer(said, question.wanted)
        )
        self._scorer.answered = True
        return answer

    def _record_scores(self, names: Mapping[str, int], answer: RulerAnswer) -> None:
        for name, one in answer.scores.items():
            said = one.explanation
            for other, i in names.items():
                said = said.replace(
                    other, f"#{i + 1}"
                )  # the ids mean nothing afterwards, places in the group do
            self._scores[names[name]] = replace(one, explanation=said)
        self._reasons |= {names[name]: problem for name, problem in answer.problems.items()}

    def _scale(self) -> list[int]:
        """The worst and the best of those that are scored."""
        ranked = sorted(self._scores, key=lambda i: self._scores[i].score)
        return ranked if len(ranked) < 2 else [ranked[0], ranked[-1]]

    def _give_up(self, part: Sequence[int], reason: str) -> None:
        self._reasons |= {i: reason for i in part if i not in self._scores}


log = logging.getLogger(__name__)

PROMPT_TOKENS = 100_000
CHARS_PER_TOKEN = 3.5
"""The estimated characters of a token: English has about 4, code and other languages fewer."""
REJECTED_GROUPS = 3
"""The number of groups in a row, refused as bad requests by a judge that worked, that is an error."""


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
            raise ConfigurationError(f"rubric={rubric!r}: say in a sentence or more what a good rollout is")
        if max_prompt_tokens < 1:
            raise ConfigurationError(f"max_prompt_tokens={max_prompt_tokens!r}: must be at least 1")
        self.name, self.rubric, self.channel = name, rubric, channel
        self.max_prompt_chars = int(max_prompt_tokens * CHARS_PER_TOKEN)
        """The limit in characters of one question; lowered where the judge says that one was too long."""
        self.answered = False
        """Whether it ever was of use: then a bad request says something of the group, not of the options."""
        self._rejected = 0
        self._told_of_equals = False

    @property
    def question(self) -> str:
        """Returns what good means."""
        return self.rubric.strip()

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
        judging = GroupJudging(self, views, salt)
        # In an order of their own: in which order the rollouts ended must not make another question.
        distinct = [first[name] for name in sorted(first)]
        await judging.score_part(distinct, [i for i in order if i in distinct] if order is not None else None)
        scores = [judging.score(first[name]) for name in signatures]
        self._warn_unscored(judging, scores)
        return scores

    def _warn_unscored(self, judging: GroupJudging, scores: Sequence[Score]) -> None:
        reasons = [score.value.reason for score in scores if isinstance(score.value, Unscored)]
        if reasons:
            log.warning("%d of %d trajectories have no score: %s", len(reasons), len(scores), reasons[0])
        if judging.rejection is None or len(reasons) < len(scores):
            self._rejected = 0
            return
        self._rejected += 1
        if self._rejected >= REJECTED_GROUPS:
            raise judging.rejection
