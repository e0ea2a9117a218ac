"""The reward of a rubric: a judge sees each trajectory alone and decides by weighted criteria.

Each criterion gets its own verdict and reason. Scores are absolute: they do not depend on the rest of the
group, and rise when the whole policy gets better.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from art.errors import ARTError, ConfigurationError, LlmAnswerError, LlmError, LlmRefusedError
from art.rewards.judge_view import CAUTION, DIGEST_CHARS, View, block, present_views, signature
from art.rewards.judged import DEFAULT_JUDGE, JudgedReward, JudgeOptions, judge_channel
from art.rewards.llm.channel import Channel
from art.rewards.llm.request import Request
from art.rewards.reward import Score
from art.rewards.ruler_scorer import PROMPT_TOKENS, GivenScore, RulerAnswer, read_ruler_answer
from art.types import Unscored
from art_extensions.rubric.judge_questions import JudgeExperience

if TYPE_CHECKING:
    from art.rewards.judge_checks import JudgeChecks
    from art.rewards.judged import JudgeModel


@dataclass(frozen=True)
class Criterion:
    """One thing that a good rollout has. weight: its share of the reward, beside those of the others.

    Example: Criterion("sources", "Every claim names the document that it was taken from.", weight=2).
    """

    name: str
    description: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.name.strip() or not self.description.strip():
            raise ConfigurationError(f"Criterion({self.name!r}, {self.description!r}): give both, in words")
        object.__setattr__(self, "name", self.name.strip())  # as answers are read
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise ConfigurationError(
                f"Criterion({self.name!r}, weight={self.weight!r}): must be above 0; turn what is bad "
                "around, so that 1 is good"
            )


def criteria_of(criteria: Iterable[Criterion] | Mapping[str, str]) -> tuple[Criterion, ...]:
    """Criteria as they are, or from {name: description}. Raises ConfigurationError for none, and for two of a
    name."""
    if isinstance(criteria, Mapping):
        criteria = tuple(Criterion(name, description) for name, description in criteria.items())
    else:
        criteria = tuple(criteria)
    if not criteria:
        raise ConfigurationError(
            "a rubric without criteria judges nothing: give Criterion(name, description)"
        )
    for one in criteria:
        if not isinstance(one, Criterion):
            raise ConfigurationError(
                f"criterion {one!r} is a {type(one).__name__}: use Criterion(name, text)"
            )
    names = [one.name for one in criteria]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(f"criteria {twice!r} are there more than once: give each a name of its own")
    return criteria


STANDARDS = "Judge by each criterion on its own. 1: met in full; 0: not met at all; between them: in part."

_TASK = (
    "Below are the trajectory of an agent and a list of criteria. Your job is to give the trajectory a score "
    "between 0 and 1 by each criterion. Take into consideration your best judgement of the agent's goal."
)
_FORM = (
    'Answer with one JSON object, {"verdicts": [{"criterion": "...", "reason": "...", "score": 0.5}, ...]}: '
    "one entry for each criterion, named as in the list."
)


def rubric_request(
    view: View, criteria: Sequence[Criterion], *, standards: str = STANDARDS, salt: str = ""
) -> Request:
    """The question as it is sent; the criteria stand in the given order."""
    listed = block("criteria", [{"name": one.name, "description": one.description} for one in criteria])
    shown = present_views([view], salt=salt)
    return verdicts_request(
        task=_TASK,
        form=_FORM,
        standards=standards,
        text=f"{listed}\n\n{shown.text}",
        known={"criterion": [one.name for one in criteria]},
        salt=salt,
    )


def read_verdicts(answer: Any, wanted: Collection[str]) -> RulerAnswer:
    """The scores and reasons by criterion. Raises ValueError where none can be used."""
    return read_named_verdicts(answer, wanted, "criterion", lambda one: one.get("criterion"))


def verdicts_request(
    *, task: str, form: str, standards: str, text: str, known: Mapping[str, Sequence[str]], salt: str
) -> Request:
    """The question for a list of verdicts. known: what names a verdict, and the values that each may have."""
    system = f"{task}\n\nGrading standards:\n{standards.strip()}\n\n{CAUTION}\n\n{form}"
    return Request(
        messages=({"role": "system", "content": system}, {"role": "user", "content": text}),
        schema=_schema(known),
        schema_name="verdicts",
        salt=salt,
    )


def read_named_verdicts(
    answer: Any, wanted: Collection[str], each: str, name_of: Callable[[Mapping[str, Any]], Any]
) -> RulerAnswer:
    """The scores and reasons by the name of their entry. each: what has an entry, for the error.

    Raises ValueError where none can be used.
    """
    verdicts = answer.get("verdicts", [answer]) if isinstance(answer, dict) else answer
    if not isinstance(verdicts, list):
        raise ValueError(f'the answer must be {{"verdicts": [...]}}, a list with an entry for each {each}')
    entries = [
        {"trajectory_id": name_of(one), "explanation": one.get("reason"), "score": one.get("score")}
        for one in verdicts
        if isinstance(one, dict)
    ]
    return read_ruler_answer({"scores": entries}, wanted)


def _schema(known: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    entry = {
        "type": "object",
        "properties": {
            **{name: {"type": "string", "enum": list(values)} for name, values in known.items()},
            "reason": {"type": "string"},
            "score": {"type": "number"},
        },
        "required": [*known, "reason", "score"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {"verdicts": {"type": "array", "items": entry}},
        "required": ["verdicts"],
        "additionalProperties": False,
    }


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
        self._experience = JudgeExperience(max_prompt_tokens)

    @property
    def question(self) -> str:
        """Returns the criteria, a line each, with their weights, and what holds for all of them."""
        listed = [f"{one.name} (weight {one.weight:g}): {one.description}" for one in self.criteria]
        return "\n".join([*listed, "", self.standards.strip()])

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
            self._experience.ask_about([view], lambda fits: self.judge(fits[0], salt))
            for view in firsts.values()
        )
        by_key = dict(zip(firsts, map(self._or_unscored, judged), strict=True))
        return [by_key[key] for key in keys]

    def parts(self, view: View) -> Sequence[Criterion]:
        """Returns what needs a verdict of its own."""
        return self.criteria

    async def judge(self, view: View, salt: str) -> Score:
        """Ask until each part has a verdict, a few times at most; in another order each time.

        Raises LlmError where the first question got no answer for other reasons than its content.
        """
        dice = random.Random(hashlib.sha256(f"{salt}\n{signature(view)}".encode()).digest())
        parts = self.parts(view)
        missing = dice.sample(parts, len(parts))
        given: dict[str, GivenScore] = {}
        why = ""
        for _ in range(QUESTIONS):
            try:
                answer = await self.ask(view, missing, salt)
            except LlmError as error:
                again = isinstance(error, LlmRefusedError | LlmAnswerError)
                if not given and not again:
                    raise
                why = f"no verdict by {', '.join(one.name for one in missing)}: {error}"
                if not again:
                    break
            else:
                given |= answer.scores
                why = f"no verdict ({'; '.join(f'{name}: {said}' for name, said in answer.problems.items())})"
                missing = [one for one in missing if one.name in answer.problems]
                if not missing:
                    return self.total(view, given)
            missing.reverse()
        return self.unscored(why)

    async def ask(self, view: View, parts: Sequence[Criterion], salt: str) -> RulerAnswer:
        """Returns verdicts by the names of the parts, and what is wrong with the others."""
        request = rubric_request(view, parts, standards=self.standards, salt=salt)
        names = [one.name for one in parts]
        return await self.channel.ask_json(request, lambda said: read_verdicts(said, names))

    def total(self, view: View, scores: Mapping[str, GivenScore]) -> Score:
        """Returns the score that all verdicts make."""
        weights = sum(one.weight for one in self.criteria)
        value = sum(one.weight * scores[one.name].score for one in self.criteria) / weights
        verdicts = [(one.name, scores[one.name]) for one in self.criteria]
        return Score(
            value=value,
            explanation="\n".join(
                f"{name} {verdict.score:g}: {verdict.explanation}" for name, verdict in verdicts
            ),
            metrics={f"{self.name}/{name}": verdict.score for name, verdict in verdicts},
            notes=tuple(f"{name}: {verdict.note}" for name, verdict in verdicts if verdict.note),
        )

    def _or_unscored(self, judged: Score | ARTError) -> Score:
        return judged if isinstance(judged, Score) else self.unscored(str(judged))

    def unscored(self, reason: str) -> Score:
        """Returns the score of what could not be judged."""
        return Score(value=Unscored(f"{self.name}: {reason}"))


class Rubric(JudgedReward):
    """Each trajectory by itself: `after_each=Rubric([Criterion("polite", "..."), ...]).score_group`.

    Metrics of a trajectory: `reward/rubric`, `rubric/<criterion>` for each, `independent_reward`. One without
    a verdict by every criterion has the reward `Unscored(reason)`. One question a trajectory;
    docs/guides/judges.md.
    """

    def __init__(
        self,
        criteria: Iterable[Criterion] | Mapping[str, str],
        judge_model: JudgeModel = DEFAULT_JUDGE,
        *,
        standards: str = STANDARDS,
        name: str = "rubric",
        max_prompt_tokens: int = PROMPT_TOKENS,
        digest_chars: int = DIGEST_CHARS,
        checks: JudgeChecks | None = None,
        **asking: Unpack[JudgeOptions],
    ) -> None:
        """criteria: or {name: description}, of equal weight. standards: what holds for all of them.

        judge_model: see `judge_channel`. max_prompt_tokens: of one question, estimated. checks: what the
        judge undergoes while it trains. asking: base_url, api_key, params, cache, budget, pace, attempts,
        deadline, as `JudgeOptions` has them. Raises ConfigurationError.
        """
        self.channel = judge_channel(judge_model, name=name, **asking)
        scorer = RubricScorer(
            self.channel, criteria, standards=standards, name=name, max_prompt_tokens=max_prompt_tokens
        )
        super().__init__(scorer, checks=checks, digest_chars=digest_chars)
