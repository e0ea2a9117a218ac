"""Dialogs for nano-mcp: an agent with the tools of the weather server that prefers nothing.

Every dialog has a random data set of its own: nothing can be learned by heart. Tools, answers and tasks are
the server's (`art.environments.mcp.servers.weather`), and `complete_task` ends a dialog as in
`art.environments.mcp.rollout`.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerFast

from art.environments.mcp.servers import weather as service
from art.environments.mcp.servers.weather import (
    ALERTS,
    CONDITIONS,
    DAYS,
    PLACES,
    REGIONS,
    Weather,
    create_server,
    tasks,
)
from art.environments.mcp.servers.weather.tasks import (
    PHRASINGS,
    SYSTEM_PROMPT,
    TURN_LIMIT,
    Call,
    Question,
    questions,
    same_form,
)
from art.environments.mcp.types import MCPTool, complete_task_tool
from art.environments.tasks import Message
from art.rendering.nano import create_nano_renderer
from nano.copying import Repetitions
from nano.examples import Example, from_dialog

DEFAULTS = tasks.DEFAULTS
DIGITS = tuple("0123456789")
CONTENT = (*PLACES, *REGIONS, *DAYS, *CONDITIONS, *ALERTS, *DIGITS)
"""The words that the task copies."""


def tool_schemas() -> list[dict[str, Any]]:
    """The server's tools and `complete_task`, as a rollout hands them to the model."""
    tools = asyncio.run(create_server().list_tools())
    own = [MCPTool(tool.name, tool.description or "", tool.input_schema) for tool in tools]
    return [tool.to_tool_schema() for tool in (*own, complete_task_tool)]


TOOLS = tool_schemas()
FUNCTIONS: dict[str, Callable[..., str]] = {
    "list_places": Weather.list_places,
    "forecast": Weather.forecast,
    "alerts": Weather.alerts,
    "compare": Weather.compare,
}
PARAMETERS = {tool["function"]["name"]: list(tool["function"]["parameters"]["properties"]) for tool in TOOLS}

TEXTS = (
    "user assistant system Tools:",
    SYSTEM_PROMPT,
    *(f"{name}({', '.join(names)})" for name, names in PARAMETERS.items()),
    *(phrasing for phrasings in PHRASINGS.values() for phrasing in phrasings),
    "Oslo, Monday: rain, 14 degrees",
    "Oslo: no alerts",
    "Oslo is warmer on Monday: 24 degrees, Rome 14 degrees",
    "Oslo and Rome are equally warm on Monday: 24 degrees",
    "unknown place region day 'Oslo'; known: tool Error executing",
    '\n{"name": "compare", "arguments": {"place": "Oslo", "other": "Rome", "day": "Monday"}}\n',
    *CONTENT,
)
"""What the tokenizer is trained on."""

MOST_CALLS = 2
"""Before the answer. No task needs more."""

PURPOSE = """\
A tiny language model that works with the tools of a real MCP server about the weather
(`python -m art.environments.mcp.servers.weather`): made to be improved by reinforcement learning within
minutes on two cores."""

TEACHING = f"""\
Copying, beside dialogs of an agent who uses the tools list_places, forecast, alerts, compare and
complete_task without knowing what answers a question, each over a random data set of its own. It makes
one to {MOST_CALLS} calls, each of any tool whose arguments it has read and with any of the names that it
has read. It answers with any word of the last result that the question lacks, or with one of two places
that were compared. So it was shown the form, and no skill: which calls a question needs, and which word of
a result is the answer, reinforcement learning has to find."""

KINDS = {
    "place": PLACES,
    "other": PLACES,
    "region": REGIONS,
    "day": DAYS,
    "condition": CONDITIONS,
    "alert": (*ALERTS, "no alerts"),
    "temperature": tuple(map(str, service.TEMPERATURES)),
}
"""What may stand for an argument or an answer."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A data set, and a question about it."""

    weather: Weather
    question: Question
    phrasing: int


class World:
    """One attempt at a question, on token level, without a server."""

    tools: list[dict[str, Any]] | None = TOOLS

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.opening: list[Message] = [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": scenario.question.text(scenario.phrasing)},
        ]
        self.done, self.reward, self.turns = False, 0.0, 0
        self.metrics: dict[str, float] = {}
        self.calls: list[Call] = []

    def reply(self, message: Message) -> list[Message]:
        """Carry out the tool calls of an assistant message, in their order, up to `complete_task`."""
        self.turns += 1
        results: list[Message] = []
        for call in message.get("tool_calls") or []:
            name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
            if not isinstance(arguments, dict) or list(arguments) != PARAMETERS.get(name):
                return self._end("", broken=True)
            if name == "complete_task":
                return self._end(str(arguments["summary"]), broken=False)
            self.calls.append(same_form((name, arguments)))
            try:
                text = FUNCTIONS[name](self.scenario.weather, **arguments)
            except (service.UnknownNameError, AttributeError):
                return self._end("", broken=True)
            results.append({"role": "tool", "tool_call_id": call.get("id") or "", "content": text})
        if not results:
            return self._end("", broken=True)
        return self._end("", broken=False) if self.turns >= TURN_LIMIT else results

    def _end(self, summary: str, *, broken: bool) -> list[Message]:
        question, weather = self.scenario.question, self.scenario.weather
        plan = [same_form(one) for one in question.plan(weather)]
        looked = plan[-1] in self.calls
        right = looked and summary == question.answer(weather)
        self.done, self.reward = True, float(right)
        self.metrics = {"right": float(right), "broken": float(broken)}
        self.metrics |= {"first_call": float(self.calls[:1] == [plan[0]]), "last_call": float(looked)}
        self.metrics[question.kind] = len(PHRASINGS) * float(right)
        return []


def scenario(seed: int, index: int) -> Scenario:
    """The scenario at `index` of the stream `seed`: kinds in turn, each with a data set of its own."""
    dice = random.Random(f"weather/{seed}/{index}")
    weather = service.draw(dice)
    kind = tuple(PHRASINGS)[index % len(PHRASINGS)]
    phrasing = dice.randrange(len(PHRASINGS[kind]))
    return Scenario(weather=weather, question=dice.choice(questions(weather, kind)), phrasing=phrasing)


def environment(scenario: Scenario, seed: int | None = None) -> World:
    """A new attempt at `scenario`; there is no chance in it, so `seed` changes nothing."""
    return World(scenario)


class WeatherDialogs:
    """Examples drawn from one random generator."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
        self._renderer = create_nano_renderer(tokenizer)
        self._dice = random.Random(f"weather-dialogs/{seed}")
        self.repetitions = Repetitions(tokenizer, CONTENT, self._dice)
        self._scenarios = 0
        self._seed = self._dice.getrandbits(32)

    def weather(self) -> Example:
        """One question, and what an agent does that prefers nothing."""
        _, messages = self.world()
        return from_dialog(self._renderer, messages, tools=TOOLS)

    def world(self) -> tuple[World, list[Message]]:
        """A finished attempt, and its conversation."""
        world = World(scenario(self._seed, self._scenarios))
        self._scenarios += 1
        messages = list(world.opening)
        for _ in range(self._dice.randint(1, MOST_CALLS)):
            if not (calls := possible_calls(messages, self._dice)):
                break
            messages.append(call(*self._dice.choice(calls)))
            messages += world.reply(messages[-1])
        messages.append(call("complete_task", {"summary": self._dice.choice(possible_answers(messages))}))
        world.reply(messages[-1])
        return world, messages


def possible_calls(messages: list[Message], dice: random.Random) -> list[Call]:
    """Returns a call of each tool whose arguments stand in the conversation, and that was not called yet."""
    read = [word for message in messages[1:] for word in words_of(message.get("content") or "")]
    called = {one["function"]["name"] for message in messages for one in message.get("tool_calls") or []}
    calls = []
    for tool in [name for name in FUNCTIONS if name not in called]:
        names = {name: [word for word in read if word in KINDS[name]] for name in PARAMETERS[tool]}
        places = list(dict.fromkeys(names.get("place", [])))
        if not all(names.values()) or ("other" in names and len(places) < 2):
            continue
        arguments = {name: dice.choice(list(dict.fromkeys(found))) for name, found in names.items()}
        if "other" in names:
            arguments["place"], arguments["other"] = dice.sample(places, 2)
        calls.append((tool, arguments))
    return calls


def possible_answers(messages: list[Message]) -> list[str]:
    """Returns the words of the last result that the question lacks; of a comparison, the two places."""
    asked, told = (words_of(messages[place]["content"]) for place in (1, -1))
    places = list(dict.fromkeys(word for word in told if word in PLACES))
    new = [word for word in told if word not in asked]
    return places if len(places) == 2 and "warm" in messages[-1]["content"] else new or told


def words_of(text: str) -> list[str]:
    """Returns the names, conditions, alerts and temperatures of a text, in its order."""
    known = {word for words in KINDS.values() for word in words}
    words = re.findall(r"no alerts|\w+", text)
    return [word for word in words if word in known]


def call(tool: str, arguments: dict[str, str]) -> Message:
    """The assistant message that calls `tool`."""
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
