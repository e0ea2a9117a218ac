"""What is asked of a model that judges or generates, what it replied, and the JSON in its reply.

JSON is found also with thoughts before it, in a fence, or among prose.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True)
class Request:
    """One question. Equal requests to one model have one answer, which the cache keeps."""

    messages: tuple[Mapping[str, Any], ...]
    """Plain OpenAI messages."""
    schema: Mapping[str, Any] | None = None
    """JSON schema of the answer; None: any text."""
    schema_name: str = "answer"
    max_tokens: int | None = None
    temperature: float | None = None
    salt: str = ""
    """Sets apart a second opinion on the same question: another salt is another entry of the cache."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The tokens and cost of a reply. usd: None if no price is known."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float | None = None


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The text of an answer, as it came: unchecked."""

    text: str
    finish_reason: str | None = None
    usage: Usage = field(default_factory=Usage)
    cached: bool = False


class Llm(Protocol):
    """A model that can be asked, wherever it lives."""

    @property
    def name(self) -> str:
        """The name as people write it: "openai/o3". It is part of the cache's key, of metrics and of logs.

        Further attributes that a model may have: `identity` (what the cache knows it by; None: nothing is
        kept), `pricing` (of its tokens), `max_tokens` (of an answer, whatever the request says), `attempts`
        (at one question).
        """
        ...

    async def complete(self, request: Request) -> Reply:
        """One attempt, without retries.

        Raises: LlmBusyError (429, with the seconds to wait where told), LlmUnavailableError (no answer, 5xx,
        deadline), LlmRefusedError (it declined), ConfigurationError (no key, unknown model, bad request).
        """
        ...


THOUGHTS_END = "</think>"
SHOWN = 300
DEAD_ENDS = 1000
"""Brackets that begin no JSON: each may cost as much time as the text is long."""


class NotJsonError(ValueError):
    """The text has no complete JSON value."""


class SeveralAnswersError(ValueError):
    """The answer has two lists of one name with different content, of which one may be quoted."""


def json_in(text: str) -> Any:
    """The JSON value of a text: all of it, or the longest object or list in it.

    Raises NotJsonError; SeveralAnswersError where it has several that hold lists under the same names. NaN
    and Infinity are no JSON.

    >>> json_in('Here you are: {"score": 1}')
    {'score': 1}
    """
    text = text.rpartition(THOUGHTS_END)[2].strip()
    decoder = json.JSONDecoder(parse_constant=_refuse_json_constant)
    try:
        return decoder.decode(text)
    except (ValueError, RecursionError):
        found = _longest(decoder, text)
    if found is None:
        raise NotJsonError(f"no JSON in {text[:SHOWN]!r}")
    return found


def _longest(decoder: json.JSONDecoder, text: str) -> Any:
    best, best_length, start, dead_ends = None, 0, 0, 0
    lists: dict[str, Any] = {}
    while dead_ends < DEAD_ENDS and (start := _next_start(text, start)) >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except RecursionError:
            return best
        except ValueError:
            start, dead_ends = start + 1, dead_ends + 1
            continue
        for name, member in value.items() if isinstance(value, dict) else ():
            if isinstance(member, list) and lists.setdefault(name, member) != member:
                raise SeveralAnswersError(f"there are several answers in it, with different {name!r}")
        if end - start > best_length:
            best, best_length = value, end - start
        start = end
    return best


def _next_start(text: str, start: int) -> int:
    found = [place for place in (text.find("{", start), text.find("[", start)) if place >= 0]
    return min(found, default=-1)


def _refuse_json_constant(name: str) -> Any:
    raise NotJsonError(f"{name} is no JSON number")


def repair_of(request: Request, reply: Reply, error: Exception) -> Request:
    """The same question, with the answer that was of no use and what was wrong with it."""
    cut = reply.finish_reason == "length"
    # What it said is repeated as its own words alone: it may be somebody else's, whom it was to judge.
    problem = "there is no JSON in it" if isinstance(error, NotJsonError) else str(error)[:SHOWN]
    why = "it was cut off: answer more briefly" if cut else problem
    text = (
        f"That answer cannot be used: {why}. Answer again, with JSON alone, in the form that was asked for."
    )
    answer = {"role": "assistant", "content": reply.text or "(nothing)"}
    return Request(
        messages=(*request.messages, answer, {"role": "user", "content": text}),
        schema=request.schema,
        schema_name=request.schema_name,
        max_tokens=request.max_tokens and request.max_tokens * (2 if cut else 1),
        temperature=request.temperature,
        salt=request.salt,
    )
