"""One endpoint that is both judge and generator, as real models are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from art.errors import ConfigurationError
from art.testing.mischief import Mischief
from art.testing.prompt import TRAJECTORY, text_of

FORMATS = ("json_schema", "json_object", "text")

Answer = Callable[[Mapping[str, Any]], Any]
"""Body of a chat request -> the content of the reply: a text, or anything that becomes JSON."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """One request, and what came of it."""

    body: dict[str, Any]
    headers: dict[str, str]
    status: int
    trouble: str | None
    """The kind of mischief that it met."""


class AnsweringModel:
    """What an endpoint answers with, whom it serves, and what it was asked."""

    def __init__(
        self,
        answer: Answer,
        *,
        mischief: Mischief | None,
        key: str,
        model: str,
        formats: Sequence[str],
        capacity: int | None,
        delay: float,
    ) -> None:
        """See `LlmServer`. Raises ConfigurationError for an unknown format."""
        if unknown := sorted(set(formats) - set(FORMATS)):
            raise ConfigurationError(f"unknown response format {unknown[0]!r}; known: {', '.join(FORMATS)}")
        self.answer, self.mischief = answer, mischief or Mischief()
        self.key, self.model = key, model
        self.formats, self.capacity, self.delay = tuple(formats), capacity, delay
        self.served: list[Served] = []

    @property
    def requests(self) -> list[dict[str, Any]]:
        """Bodies of the chat requests that ended or met mischief, in their order."""
        return [one.body for one in self.served]


def either(*, judge: Answer, generator: Answer) -> Answer:
    """`judge` answers what shows trajectories, `generator` all else."""

    def answer(body: Mapping[str, Any]) -> Any:
        shows = any(TRAJECTORY.search(text_of(message)) for message in body["messages"])
        return judge(body) if shows else generator(body)

    return answer
