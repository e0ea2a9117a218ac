"""Many questions about one group at once: those that fail cost their own answer, not the others'."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from art.errors import BudgetExceededError, LlmError
from art.rewards.presentation import exhibit
from art.rewards.ruler_sitting import SHORTER
from art.rewards.view import View
from art.rewards.views import shortened

T = TypeVar("T")


async def ask_all(questions: Iterable[Coroutine[Any, Any, T]]) -> list[T | LlmError]:
    """The answers in order, or the LlmError that a question ended in.

    Raises BudgetExceededError where nothing else came of any of them, and every other error at once.
    """
    tasks = [asyncio.create_task(_answer_or_error(question)) for question in questions]
    try:
        answers = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    if answers and all(isinstance(one, BudgetExceededError) for one in answers):
        raise answers[0]  # type: ignore[misc]  # an error, as was just seen
    return answers


async def _answer_or_error(question: Coroutine[Any, Any, T]) -> T | LlmError:
    try:
        return await question
    except LlmError as error:
        return error


def fitting(views: Sequence[View], max_chars: int) -> list[View] | None:
    """The views, their tool outputs digested until a prompt has at most `max_chars`; None: too long."""
    for digest_chars in (None, *SHORTER):
        shown = list(views) if digest_chars is None else [shortened(view, digest_chars) for view in views]
        if len(exhibit(shown).text) <= max_chars:
            return shown
    return None
