"""A Python function as a model that is asked: a judge of one's own, a client of one's own."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from typing import Any

from art.errors import ARTError, ConfigurationError, LlmError
from art.rewards.llm.params import FREE
from art.rewards.llm.request import Reply, Request
from art.tracking.prices import TokenPricing

Answer = Callable[..., Any]
"""Gets the messages, or the messages and the JSON schema; returns (or gives when awaited) text or JSON."""


class FunctionLlm:
    """Calls the function once for each attempt; one that is not async runs in a thread of its own."""

    identity: str | None = None
    """Nothing says whether the function is still the same one: its answers are not kept in a cache's file."""
    attempts: int | None = None

    def __init__(self, function: Answer) -> None:
        """Raises ConfigurationError for a function that takes neither one nor two arguments by place."""
        self.name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', 'judge')}"
        self._function = function
        self._takes_schema = _arguments(function, self.name) > 1
        called = getattr(function, "__call__", None)  # noqa: B004  # an object with an async __call__
        self._waits = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)

    @property
    def pricing(self) -> TokenPricing | None:
        """The price of a function, which ART does not know."""
        return FREE

    async def complete(self, request: Request) -> Reply:
        """Returns the function's answer. Its exceptions become an LlmError, unless they are ART's own."""
        messages = [dict(message) for message in request.messages]
        given = (messages, request.schema) if self._takes_schema else (messages,)
        try:
            answer = (
                self._function(*given) if self._waits else await asyncio.to_thread(self._function, *given)
            )
            if inspect.isawaitable(answer):
                answer = await answer
        except ARTError:
            raise
        except Exception as error:
            raise LlmError(f"{self.name} raised {type(error).__name__}: {error}") from error
        return Reply(text=self._text(answer))

    def _text(self, answer: Any) -> str:
        if isinstance(answer, str):
            return answer
        if hasattr(answer, "model_dump"):
            answer = answer.model_dump(mode="json")
        try:
            return json.dumps(answer)
        except (TypeError, ValueError) as error:
            raise LlmError(f"{self.name} returned {answer!r}: neither text nor JSON ({error})") from error


def _arguments(function: Answer, name: str) -> int:
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = list(inspect.signature(function).parameters.values())
    if any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in taken):
        return 2
    placed = [one for one in taken if one.kind in by_place]
    needed = [one for one in placed if one.default is inspect.Parameter.empty]
    if not placed or len(needed) > 2:
        raise ConfigurationError(
            f"{name} takes {len(placed)} arguments: a model that is a function gets the messages, "
            "or the messages and the JSON schema of the answer"
        )
    # A second argument with a default may be anything of the user's own.
    return len(needed) if needed else 1
