"""Tasks for an agent with the weather tools: as texts, what each needs to be done, and how well it was done.

Each question is asked in the words of one of a few phrasings, so `Question.parse` finds it again in a text.
Quality follows from the conversation and the shipped data alone.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, zip_longest
from typing import Any

from art.environments.tasks import TaskDefaults
from art.errors import ConfigurationError
from art.mcp import GeneratedScenario, GeneratedScenarioCollection, complete_task_tool
from art_extensions.testing.mcp_servers.weather import (
    ALERTS,
    CONDITIONS,
    DAYS,
    PLACES,
    REGIONS,
    Weather,
    shipped,
)

SYSTEM_PROMPT = "You answer questions about the weather."
"""What `art/nano-mcp` was taught under."""

TURN_LIMIT = 6
"""Turns of a rollout: twice what the longest task needs."""
DEFAULTS = TaskDefaults(
    base_model="art/nano-mcp",
    groups=16,
    group_size=8,
    steps=100,
    learning_rate=3e-3,
    warmup_steps=2,
    final_share=0.2,
    max_tokens=48,
)

Call = tuple[str, dict[str, str]]
"""A tool and its arguments."""

PHRASINGS = {
    "condition": (
        "What will the weather be like in {place} on {day}?",
        "Tell me the weather forecast for {place} on {day}.",
    ),
    "temperature": (
        "How warm will it be in {place} on {day}?",
        "Find out the temperature in {place} on {day}.",
    ),
    "alert": (
        "Which weather alert is there for {place}?",
        "Tell me the weather alert for {place}.",
    ),
    "alert_day": (
        "On which day is there a weather alert for {place}?",
        "Find out the day of the weather alert for {place}.",
    ),
    "warmer": (
        "Which place is warmer on {day}, {place} or {other}?",
        "Compare {place} and {other} on {day} and tell me the warmer place.",
    ),
    "largest_condition": (
        "What will the weather be like on {day} in the largest place of the {region}?",
        "Find out the largest place of the {region} and tell me the weather forecast on {day}.",
    ),
    "largest_temperature": (
        "How warm will it be on {day} in the largest place of the {region}?",
        "Find out the largest place of the {region} and tell me the temperature on {day}.",
    ),
    "alert_temperature": (
        "How warm will it be in {place} on the day of the weather alert?",
        "Find out the day of the weather alert for {place} and tell me the temperature.",
    ),
}
"""Texts by kind of question."""

PER_KIND = 2
"""How many phrasings each kind has."""

DIFFICULTIES = {"alert_temperature": 3, "largest_condition": 3, "largest_temperature": 3, "warmer": 2}
HELD_OUT = 4
"""One question in this many is held out from training."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question about the weather; names are empty if its kind needs none."""

    kind: str
    place: str = ""
    other: str = ""
    day: str = ""
    region: str = ""

    def text(self, phrasing: int = 0) -> str:
        """The question in words."""
        return PHRASINGS[self.kind][phrasing].format_map(vars(self))

    @property
    def expected_kind(self) -> str:
        """The expected answer: a condition, a temperature, an alert, a day or a place."""
        return "place" if self.kind == "warmer" else self.kind.rpartition("_")[2]

    def plan(self, weather: Weather) -> tuple[Call, ...]:
        """The calls that find the answer; none of them can be spared."""
        forecast = ("forecast", {"place": self.place, "day": self.day})
        if self.kind.startswith("largest"):
            largest = weather.regions[self.region][0]
            listing = ("list_places", {"region": self.region})
            return listing, ("forecast", {"place": largest, "day": self.day})
        if self.kind == "alert_temperature":
            day = weather.warnings[self.place].day
            return ("alerts", {"place": self.place}), ("forecast", {"place": self.place, "day": day})
        if self.kind.startswith("alert"):
            return (("alerts", {"place": self.place}),)
        if self.kind == "warmer":
            return (("compare", {"place": self.place, "other": self.other, "day": self.day}),)
        return (forecast,)

    def answer(self, weather: Weather) -> str:
        """The word or number that is asked for."""
        if self.kind == "warmer":
            return max((self.place, self.other), key=lambda one: weather.forecasts[one, self.day].temperature)
        if self.kind in ("alert", "alert_day"):
            alert = weather.warnings.get(self.place)
            return (
                "no alerts"
                if alert is None
                else getattr(alert, "day" if self.expected_kind == "day" else "kind")
            )
        arguments = self.plan(weather)[-1][1]
        forecast = weather.forecasts[arguments["place"], arguments["day"]]
        return forecast.condition if self.expected_kind == "condition" else str(forecast.temperature)

    @classmethod
    def parse(cls, text: str) -> Question | None:
        """The question that `text` asks; None if it is none of ours."""
        for kind, phrasings in PHRASINGS.items():
            for phrasing in phrasings:
                pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>\\w+)", re.escape(phrasing))
                if found := re.fullmatch(pattern, text.strip()):
                    return cls(kind=kind, **found.groupdict())
        return None


def questions(weather: Weather, kind: str) -> list[Question]:
    """All questions of a kind that have one answer, in a fixed order."""
    if kind == "warmer":
        return [
            Question(kind=kind, place=place, other=other, day=day)
            for place, other in combinations(PLACES, 2)
            for day in DAYS
            if weather.forecasts[place, day].temperature != weather.forecasts[other, day].temperature
        ]
    if kind.startswith("largest"):
        return [Question(kind=kind, region=region, day=day) for region in REGIONS for day in DAYS]
    if kind == "alert":
        return [Question(kind=kind, place=place) for place in PLACES]
    if kind.startswith("alert"):
        return [Question(kind=kind, place=place) for place in PLACES if place in weather.warnings]
    return [Question(kind=kind, place=place, day=day) for place in PLACES for day in DAYS]


@dataclass(frozen=True, kw_only=True)
class WeatherTasks:
    """Scenarios to train on and scenarios to test with; no question is in both, in whatever words."""

    train: GeneratedScenarioCollection
    test: GeneratedScenarioCollection


def scenarios(*, train: int = 192, test: int = 64, seed: int = 0) -> WeatherTasks:
    """Tasks about the shipped data, no text twice, the kinds in turn as far as they have questions.

    Raises ConfigurationError when there are fewer texts than asked for.
    """
    dice = random.Random(f"weather/{seed}")
    learnt, held_out = [], []
    for kind in PHRASINGS:
        asked = questions(shipped(), kind)
        dice.shuffle(asked)
        cut = len(asked) // HELD_OUT
        held_out.append(_texts(asked[:cut]))
        learnt.append(_texts(asked[cut:]))
    return WeatherTasks(train=_in_turn("train", learnt, train), test=_in_turn("test", held_out, test))


def _texts(asked: Sequence[Question]) -> list[GeneratedScenario]:
    """Every question in a phrasing, the next in the next one; then those in the other phrasings."""
    return [
        GeneratedScenario(task=question.text((at + round_) % PER_KIND), difficulty=_difficulty(question))
        for round_ in range(PER_KIND)
        for at, question in enumerate(asked)
    ]


def _difficulty(question: Question) -> int:
    return DIFFICULTIES.get(question.kind, 1)


def _in_turn(
    name: str, kinds: Sequence[Sequence[GeneratedScenario]], count: int
) -> GeneratedScenarioCollection:
    """The first of each kind, then the second of each, and so on."""
    turns = [one for turn in zip_longest(*kinds) for one in turn if one is not None]
    if count > len(turns):
        raise ConfigurationError(f"scenarios({name}={count}): there are only {len(turns)}; ask for fewer")
    return GeneratedScenarioCollection(turns[:count])


DONE = 0.8
"""The least quality of a task that counts as done: the right answer, found with the tools."""
GUESSED = 0.5
"""What a right answer is worth that no tool had given: luck, or learnt by heart."""
PROGRESS = 0.4
"""What all needed calls are worth when the answer is wrong or missing."""
NEEDLESS = 0.05
"""What each call that was not needed costs, down to `DONE`."""

ANSWERS = {"place": PLACES, "day": DAYS, "condition": CONDITIONS, "alert": (*ALERTS, "no")}


def quality(messages: Sequence[Mapping[str, Any]], weather: Weather | None = None) -> float:
    """Returns a score of 0 to 1 for a conversation of plain OpenAI messages about the task of its last user
    message.

    weather: the data that is true; None: the shipped set. Raises ConfigurationError for a task that is none
    of `art_extensions.testing.mcp_servers.weather.tasks`.
    """
    data = weather or shipped()
    texts = [str(message["content"]) for message in messages if message["role"] == "user"]
    question = next(filter(None, map(Question.parse, reversed(texts))), None)
    if question is None:
        raise ConfigurationError(
            f"no task of the weather server in {(texts or ['no user message'])[-1]!r}: use those of "
            f"art_extensions.testing.mcp_servers.weather.tasks"
        )
    made = [same_form(call) for call in _calls(messages)]
    plan = [same_form(call) for call in question.plan(data)]
    looked_up = [call for call in made if call[0] != complete_task_tool.name]
    summaries = [arguments.get("summary", "") for name, arguments in made if name == complete_task_tool.name]
    if summaries and _states_answer(question, summaries[0], question.answer(data)):
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


def same_form(call: Call) -> Call:
    """The call as all that ask the same are written: case does not matter, nor which of two comes first."""
    name, arguments = call
    if name == complete_task_tool.name:
        return call
    plain = {key: value.strip().lower() for key, value in arguments.items()}
    if name == "compare" and {"place", "other"} <= plain.keys():
        plain["place"], plain["other"] = sorted((plain["place"], plain["other"]))
    return name, plain


def _states_answer(question: Question, summary: str, answer: str) -> bool:
    """Returns whether the first word of the sort that is asked for is the answer: "14", "14 degrees in
    Oslo".
    """
    words = re.findall(r"[a-z]+|\d+", summary.lower())
    sort = {name.lower() for name in ANSWERS.get(question.expected_kind, ())}
    said = [word for word in words if (word in sort if sort else word.isdigit())]
    return said[:1] == [answer.split()[0].lower()]
