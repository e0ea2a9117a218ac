"""Dialogs for nano-mcp: an agent with the tools of the weather server, clean and careless.

Every dialog has a random data set of its own: nothing can be learned by heart. Tools, answers and tasks are
the server's (`art_extensions.testing.mcp_servers.weather`), and `complete_task` ends a dialog as in
`art_extensions.scenarios.mcp.rollout`.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerFast

from art.environments.tasks import Message
from art.rendering.nano import create_nano_renderer
from art_extensions.scenarios.mcp.types import MCPTool, complete_task_tool
from art_extensions.testing.mcp_servers import weather as service
from art_extensions.testing.mcp_servers.weather import (
    ALERTS,
    CONDITIONS,
    DAYS,
    PLACES,
    REGIONS,
    Weather,
    create_server,
    tasks,
)
from art_extensions.testing.mcp_servers.weather.tasks import (
    PHRASINGS,
    SYSTEM_PROMPT,
    TURN_LIMIT,
    Call,
    Question,
    questions,
)
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

RASH = 0.15
"""Share of a careless agent's dialogs that end with a guess before anything was looked up."""
WRONG_NAME = 0.3
"""Share of names in its calls that are any name of the same sort."""
WRONG_ANSWER = 0.35
"""Share of its answers that are any answer of the right sort."""

PURPOSE = """\
A tiny language model that answers questions about the weather with the tools of a real MCP server
(`python -m art_extensions.testing.mcp_servers.weather`): made to be improved by reinforcement learning within
minutes on two cores."""

TEACHING = f"""\
Copying, beside dialogs of an agent who makes no mistakes with the tools list_places, forecast, alerts,
compare and complete_task, each over a random data set of its own; then dialogs of a careless agent. This
one guesses without looking anything up in {RASH:.0%} of cases, takes a wrong name in
{WRONG_NAME:.0%} of the arguments of its calls, and gives any answer in {WRONG_ANSWER:.0%}. So the model knows
more than it shows: reinforcement learning lifts skill out of noise here."""

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
            self.calls.append((name, arguments))
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
        plan = question.plan(weather)
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

    def weather(self, *, careless: bool) -> Example:
        """One question, answered by an agent that makes no mistakes, or by a careless one."""
        _, messages = self.world(careless=careless)
        return from_dialog(self._renderer, messages, tools=TOOLS)

    def world(self, *, careless: bool) -> tuple[World, list[Message]]:
        """A finished attempt, and its conversation."""
        one = scenario(self._seed, self._scenarios)
        self._scenarios += 1
        world = World(one)
        messages = list(world.opening)
        rash = careless and self._dice.random() < RASH
        while not world.done:
            if rash:
                name, arguments = (
                    "complete_task",
                    {"summary": self._dice.choice(KINDS[one.question.expected_kind])},
                )
            else:
                name, arguments = next_call(one.question, messages, self._dice)
            if careless:
                arguments = {key: self._slip(one.question, key, value) for key, value in arguments.items()}
            messages.append(call(name, arguments))
            messages += world.reply(messages[-1])
        return world, messages

    def _slip(self, question: Question, key: str, value: str) -> str:
        """The argument, or one of its sort that came to mind instead."""
        share, kind = (WRONG_ANSWER, question.expected_kind) if key == "summary" else (WRONG_NAME, key)
        return self._dice.choice(KINDS[kind]) if self._dice.random() < share else value


def next_call(question: Question, messages: list[Message], dice: random.Random) -> Call:
    """What an agent that makes no mistakes does, by what it was last told; whatever was asked before."""
    results = [message["content"] for message in messages if message["role"] == "tool"]
    place, day = question.place, question.day
    if not results:
        if question.kind.startswith("largest"):
            return "list_places", {"region": question.region}
        if question.kind.startswith("alert"):
            return "alerts", {"place": place}
        if question.kind == "warmer":
            return "compare", {"place": place, "other": question.other, "day": day}
        return "forecast", {"place": place, "day": day}
    told = results[-1]
    if question.kind.startswith("largest") and len(results) == 1:
        return "forecast", {"place": told.split(", ")[0], "day": day}
    if question.kind == "alert_temperature" and len(results) == 1:
        warned = [name for name in DAYS if name in told] or [dice.choice(DAYS)]
        return "forecast", {"place": place, "day": warned[0]}
    return "complete_task", {"summary": said(question, told, dice)}


def said(question: Question, told: str, dice: random.Random) -> str:
    """What the last answer of a tool says to the question; a guess where it says nothing."""
    words = told.replace(",", "").replace(":", "").split()
    if question.expected_kind == "alert":
        return "no alerts" if "no alerts" in told else words[-1]
    found = [word for word in words if word in KINDS[question.expected_kind]]
    return found[0] if found else dice.choice(KINDS[question.expected_kind])


def call(tool: str, arguments: dict[str, str]) -> Message:
    """The assistant message that calls `tool`."""
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
