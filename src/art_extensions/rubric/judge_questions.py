"""Many questions about one group at once: those that fail cost their own answer, not the others'."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any, TypeVar

from art.errors import ARTError, BudgetExceededError, ConfigurationError, LlmError, LlmTooLongError
from art.rewards.judge_view import View, present_views, shortened
from art.rewards.ruler_scorer import CHARS_PER_TOKEN, NEVER_TOO_LONG, REJECTED_GROUPS, SHORTER, TOO_LONG_SHARE

T = TypeVar("T")


class JudgeExperience:
    """The experience with a judge so far: whether it works, and how much it reads at once.

    That its endpoint refuses a bad request says something of the options at first; of the question, once it
    answered others; of the options again, when all questions of three groups in a row are refused.
    """

    def __init__(self, max_prompt_tokens: int) -> None:
        """Raises ConfigurationError for a limit below 1."""
        if max_prompt_tokens < 1:
            raise ConfigurationError(f"max_prompt_tokens={max_prompt_tokens!r}: must be at least 1")
        self.max_prompt_chars = int(max_prompt_tokens * CHARS_PER_TOKEN)
        """The limit in characters of one question; lowered where the judge says that one was too long."""
        self._answered = False
        self._rejected = 0

    async def ask_about(self, views: Sequence[View], ask: Callable[[list[View]], Awaitable[T]]) -> T:
        """Returns the result of `ask` for the views, with tool outputs shortened until the judge can read
        them.

        Raises LlmTooLongError where that does not help, and what `ask` raises.
        """
        while (fits := shortened_to_fit(views, self.max_prompt_chars)) is not None:
            try:
                answer = await ask(fits)
            except LlmTooLongError:
                length = len(present_views(fits).text)
                if length <= NEVER_TOO_LONG:
                    raise
                self.max_prompt_chars = min(self.max_prompt_chars, int(length * TOO_LONG_SHARE))
            else:
                self._answered = True
                return answer
        raise LlmTooLongError(f"it is longer than the {self.max_prompt_chars} characters of a question")

    async def ask_all(self, questions: Iterable[Coroutine[Any, Any, T]]) -> list[T | ARTError]:
        """The answers in order, or the LlmError or ConfigurationError that a question ended in.

        Raises BudgetExceededError where nothing else came of any of them, ConfigurationError where the
        options must be at fault, and every other error at once.
        """
        asked = list(questions)
        tasks = [asyncio.create_task(_answer_or_error(question)) for question in asked]
        try:
            answers = await asyncio.gather(*tasks)
        finally:
            for task, question in zip(tasks, asked, strict=True):
                task.cancel()
                if getcoroutinestate(question) == CORO_CREATED:  # it was cancelled before it began
                    question.close()
        if answers and all(isinstance(one, BudgetExceededError) for one in answers):
            raise answers[0]  # type: ignore[misc]  # an error, as was just seen
        self._learn(answers)
        return answers

    def _learn(self, answers: Sequence[object]) -> None:
        rejection = next((one for one in answers if isinstance(one, ConfigurationError)), None)
        if rejection is None or not all(isinstance(one, ARTError) for one in answers):
            self._rejected = 0
            return
        self._rejected += 1
        if not self._answered or self._rejected >= REJECTED_GROUPS:
            raise rejection


async def _answer_or_error(question: Coroutine[Any, Any, T]) -> T | ARTError:
    try:
        return await question
    except (LlmError, ConfigurationError) as error:
        return error


def shortened_to_fit(views: Sequence[View], max_chars: int) -> list[View] | None:
    """The views, their tool outputs digested until a prompt has at most `max_chars`; None: too long."""
    for digest_chars in (None, *SHORTER):
        shown = list(views) if digest_chars is None else [shortened(view, digest_chars) for view in views]
        if len(present_views(shown).text) <= max_chars:
            return shown
    return None
