"""Dialogs for nano-mcp: an agent with the tools of the weather server that prefers nothing.

Every dialog has a random data set of its own: nothing can be learned by heart. Tools, answers and tasks are
the server's (`art_extensions.testing.mcp_servers.weather`), and `complete_task` ends a dialog as in
`art_extensions.scenarios.mcp.rollout`.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Sequence
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
    same_form,
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

MOST_CALLS = 2
"""Before the answer. No task needs more."""
TAUGHT = (*PHRASINGS, "warmer", "largest_condition", "largest_temperature")
"""Kinds of questions in turn: those oftener whose calls and answers no other kind has."""

PURPOSE = """\
A tiny language model that works with the tools of a real MCP server about the weather
(`python -m art_extensions.testing.mcp_servers.weather`): made to be improved by reinforcement learning within
minutes on two cores."""

TEACHING = f"""\
Copying, beside dialogs of an agent who uses the tools list_places, forecast, alerts, compare and
complete_task without knowing which of them answers a question, each over a random data set of its own. It
calls any tool, with the names that it has read or else with any, and makes at most {MOST_CALLS} calls. It
answers after any result but a list, with a word of it of the sort that is asked for, or any word where there
is none. So it was shown the form, and no skill: which calls a question needs, which place of a list is the
largest and which of two the warmer, reinforcement learning has to find."""

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


def scenario(seed: int, index: int, kinds: Sequence[str] = tuple(PHRASINGS)) -> Scenario:
    """The scenario at `index` of the stream `seed`: kinds in turn, each with a data set of its own."""
    dice = random.Random(f"weather/{seed}/{index}")
    weather = service.draw(dice)
    kind = kinds[index % len(kinds)]
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
        world = World(scenario(self._seed, self._scenarios, TAUGHT))
        self._scenarios += 1
        messages = list(world.opening)
        while not world.done:
            answers = possible_answers(world.scenario.question, messages)
            calls = possible_calls(messages, self._dice) if len(world.calls) < MOST_CALLS else []
            if calls and not (answers and self._dice.random() < 0.5):
                messages.append(call(*self._dice.choice(calls)))
            else:
                messages.append(call("complete_task", {"summary": self._dice.choice(answers)}))
            messages += world.reply(messages[-1])
        return world, messages


def possible_calls(messages: list[Message], dice: random.Random) -> list[Call]:
    """Returns a call of each tool that was not called yet: with names that stand in the conversation, or any
    names where none does. It lists places first or never, and compares two that it has read of.
    """
    read = list(dict.fromkeys(word for message in messages[1:] for word in words_of(message["content"])))
    called = {one["function"]["name"] for message in messages for one in message.get("tool_calls") or []}
    calls: list[Call] = []
    for tool in [name for name in FUNCTIONS if name not in called]:
        names = {name: [word for word in read if word in KINDS[name]] for name in PARAMETERS[tool]}
        if (tool == "list_places" and called) or (tool == "compare" and len(names["place"]) != 2):
            continue
        arguments = {name: dice.choice(found or KINDS[name]) for name, found in names.items()}
        if tool == "compare":
            arguments["place"], arguments["other"] = names["place"]
        calls.append((tool, arguments))
    return calls


def possible_answers(question: Question, messages: list[Message]) -> list[str]:
    """Returns the words of the last result that are of the sort that is asked for, or else all that are no
    place. A list of places answers nothing.
    """
    if messages[-1]["role"] != "tool":
        return []
    result = words_of(messages[-1]["content"])
    others = [word for word in result if word not in PLACES]
    found = [word for word in result if word in KINDS[question.expected_kind]]
    return (found or others) if others else []


def words_of(text: str) -> list[str]:
    """Returns the names, conditions, alerts and temperatures of a text, in its order."""
    known = {word for words in KINDS.values() for word in words}
    words = re.findall(r"no alerts|\w+", text)
    return [word for word in words if word in known]


def call(tool: str, arguments: dict[str, str]) -> Message:
    """The assistant message that calls `tool`."""
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
