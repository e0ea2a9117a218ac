"""How well a weather task was done, from the conversation and the shipped data alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from art.errors import ConfigurationError
from art.mcp.default_tools import complete_task_tool
from art.mcp.servers.weather.service import ALERTS, CONDITIONS, DAYS, PLACES, Weather, shipped
from art.mcp.servers.weather.tasks import Call, Question

DONE = 0.8
"""From this quality on a task counts as done: the right answer, found with the tools."""
GUESSED = 0.5
"""What a right answer is worth that no tool had given: luck, or learnt by heart."""
PROGRESS = 0.4
"""What all needed calls are worth when the answer is wrong or missing."""
NEEDLESS = 0.05
"""What each call that was not needed costs, down to `DONE`."""

ANSWERS = {"place": PLACES, "day": DAYS, "condition": CONDITIONS, "alert": (*ALERTS, "no")}


def quality(messages: Sequence[Mapping[str, Any]], weather: Weather | None = None) -> float:
    """0 to 1 for a conversation of plain OpenAI messages about the task of its last user message.

    weather: the data that is true; None: the shipped set. Raises ConfigurationError for a task that is none
    of `art.mcp.servers.weather.tasks`.
    """
    data = weather or shipped()
    texts = [str(message["content"]) for message in messages if message["role"] == "user"]
    question = next(filter(None, map(Question.parse, reversed(texts))), None)
    if question is None:
        raise ConfigurationError(
            f"no task of the weather server in {(texts or ['no user message'])[-1]!r}: use those of "
            f"art.mcp.servers.weather.tasks"
        )
    made = [_same_form(call) for call in _calls(messages)]
    plan = [_same_form(call) for call in question.plan(data)]
    looked_up = [call for call in made if call[0] != complete_task_tool.name]
    summaries = [arguments.get("summary", "") for name, arguments in made if name == complete_task_tool.name]
    if summaries and _says(question, summaries[0], question.answer(data)):
        if plan[-1] not in looked_up:
            return GUESSED
        return max(DONE, 1.0 - NEEDLESS * max(0, len(looked_up) - len(plan)))
    return PROGRESS * sum(call in looked_up for call in plan) / len(plan)


def _calls(messages: Sequence[Mapping[str, Any]]) -> Iterator[Call]:
    """Tools called, in their order; what is no call of a tool with named arguments is left out."""
    for message in messages:
        for call in message.get("tool_calls") or []:
            arguments = call["function"]["arguments"]
            if isinstance(arguments, str):
                try:
                    arguments = json.loads(arguments)
                except ValueError:
                    continue
            if isinstance(arguments, dict):
                yield call["function"]["name"], {key: str(value) for key, value in arguments.items()}


def _same_form(call: Call) -> Call:
    """The call as all that ask the same are written: case does not matter, nor which of two comes first."""
    name, arguments = call
    if name == complete_task_tool.name:
        return call
    plain = {key: value.strip().lower() for key, value in arguments.items()}
    if name == "compare" and {"place", "other"} <= plain.keys():
        plain["place"], plain["other"] = sorted((plain["place"], plain["other"]))
    return name, plain


def _says(question: Question, summary: str, answer: str) -> bool:
    """Whether the first word of the sort that is asked for is the answer: "14", "14 degrees in Oslo"."""
    words = re.findall(r"[a-z]+|\d+", summary.lower())
    sort = {name.lower() for name in ANSWERS.get(question.wanted, ())}
    said = [word for word in words if (word in sort if sort else word.isdigit())]
    return said[:1] == [answer.split()[0].lower()]
