"""RULER through `art.rewards.ruler.acompletion`, where a program's tests put a function of their own there.

That function gets the keywords that older releases gave it, and answers with ids "1" to "N" in the order of
the trajectories. All are shown, equal ones too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from art.errors import LlmAnswerError, LlmError, require_extra
from art.process.imports import import_lock
from art.rewards.judge_view import View, present_views
from art.rewards.judged import JudgedReward
from art.rewards.llm.params import usd_of
from art.rewards.llm.request import json_in
from art.rewards.reward import Score
from art.rewards.ruler_scorer import instructions, read_ruler_answer
from art.tracking.metrics_builder import active_builder
from art.tracking.prices import value_at
from art.types import Unscored


async def acompletion(*args: Any, **request: Any) -> Any:
    """Calls litellm's function of this name, which is loaded by the first call."""
    require_extra("litellm", "art.rewards.ruler.acompletion")
    litellm = await asyncio.to_thread(_load_litellm)
    return await litellm.acompletion(*args, **request)


def _load_litellm() -> Any:
    with import_lock:
        return import_module("litellm")


def replaced_ruler(
    function: Any, judge_model: Any, params: Mapping[str, Any] | None, rubric: str
) -> JudgedReward | None:
    """Returns the reward that asks the function; None if it is the one that was always there."""
    if function is acompletion:
        return None
    return JudgedReward(ReplacedJudge(function, judge_model, params, rubric))


class ReplacedJudge:
    """A scorer that asks a function like litellm's `acompletion`, once."""

    name = "ruler"

    def __init__(
        self, function: Any, judge_model: Any, params: Mapping[str, Any] | None, rubric: str
    ) -> None:
        self._function, self._model, self._rubric = function, judge_model, rubric
        self._params = dict(params or {})

    @property
    def question(self) -> str:
        """Returns what good means."""
        return self._rubric.strip()

    async def score(
        self, views: Sequence[View], *, order: Sequence[int] | None = None, salt: str = ""
    ) -> list[Score]:
        """One score for each view, `Unscored(reason)` where the answer has none. Raises LlmError."""
        shown = present_views(views, order=range(len(views)))
        text, wanted = shown.text, [str(place) for place in range(1, len(views) + 1)]
        for drawn, place in zip(shown.ids, wanted, strict=True):
            text = text.replace(f'<trajectory id="{drawn}">', f'<trajectory id="{place}">')
        reply = await self._ask(text)
        self._add_cost(reply)
        try:
            answer = read_ruler_answer(json_in(_content(reply)), wanted)
        except (ValueError, TypeError, LookupError) as error:
            raise LlmAnswerError(f"acompletion gave no answer of the right form: {error}") from error
        return [
            Score(value=given.score, explanation=given.explanation, metrics={"ruler_score": given.score})
            if (given := answer.scores.get(place)) is not None
            else Score(value=Unscored(f"ruler: {answer.problems[place]}"))
            for place in wanted
        ]

    async def _ask(self, text: str) -> Any:
        from art.rewards.ruler import Response

        messages = [
            {"role": "system", "content": instructions(self._rubric)},
            {"role": "user", "content": text},
        ]
        try:
            return await self._function(
                model=self._model,
                messages=messages,
                response_format=Response,
                caching=False,
                **self._params,
            )
        except Exception as error:
            raise LlmError(f"acompletion raised {type(error).__name__}: {error}") from error

    def _add_cost(self, reply: Any) -> None:
        builder, name = active_builder(), str(self._model)
        usd = usd_of(reply, provider=name.partition("/")[0], model=name, pricing=None)
        if builder is not None and usd:
            builder.add_cost(f"{builder.cost_context}/judge/ruler", usd)


def _content(reply: Any) -> str:
    choices = value_at(reply, "choices")
    return str(value_at(choices[0], "message", "content") or "")
