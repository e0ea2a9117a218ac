"""A mail agent with three tools: search(keyword), read(id), answer(text).

Every scenario is a fresh random inbox of 80 mails (16 projects x 5 roles), so nothing can be learned by
heart: the agent has to search, find the right line, read that mail and answer with the name in it. Reward:
right 1, wrong or out of turns 0, broken -1 (no tool call, an unknown tool, missing or unexpected
arguments).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from art.environments.tasks import Message, TaskDefaults, rollouts_in
from art.process.foreign_files import parse_json

NAME = "mail"
TITLE = "Mail agent"
DESCRIPTION = "Find a name in an inbox of 80 mails with the tools search, read and answer."
SCORE = "right"
SCORE_LABEL = "questions answered right"
DEFAULTS = TaskDefaults(
    base_model="art/nano-tools",
    groups=16,
    group_size=8,
    steps=40,
    learning_rate=2e-3,
    warmup_steps=2,
    final_share=0.2,
    max_tokens=48,
)
LARGER: Mapping[str, TaskDefaults] = MappingProxyType({})

SYSTEM_PROMPT = "You answer questions about an inbox."
PROJECTS = (
    *("amber", "atlas", "birch", "cedar", "comet", "coral", "delta", "ember"),
    *("falcon", "harbor", "indigo", "lotus", "maple", "meteor", "nova", "onyx"),
    *("opal", "orion", "pearl", "raven", "sierra", "tango", "willow", "zephyr"),
)
ROLES = ("author", "buyer", "guide", "owner", "tester")
NAMES = (
    *("alice", "bruno", "carla", "david", "elena", "felix", "greta", "henry"),
    *("irene", "jonas", "karin", "lukas", "maria", "nadia", "oscar", "paula"),
    *("quinn", "rosa", "simon", "tanja", "ursula", "viktor", "wanda", "yusuf"),
)
ID_LETTERS = "bcdfghjklmnpqrst"
PROJECTS_USED = 16
SEARCH_LIMIT = 5
TURN_LIMIT = 6


def _tool(name: str, parameter: str, description: str) -> dict[str, Any]:
    """The OpenAI schema of a tool with one text parameter."""
    parameters = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


TOOLS = [
    _tool("search", "keyword", "List up to five mails whose subject contains every word of the keyword."),
    _tool("read", "id", "Read the mail with this id."),
    _tool("answer", "text", "Give the answer to the question; this ends the conversation."),
]
PARAMETERS = {"search": "keyword", "read": "id", "answer": "text"}


@dataclass(frozen=True, kw_only=True)
class Mail:
    """One mail: its subject is `project role`, its text says the name."""

    id: str
    project: str
    role: str
    name: str


@dataclass(frozen=True, kw_only=True)
class MailScenario:
    """An inbox and a question about the mail `wanted`."""

    inbox: tuple[Mail, ...]
    wanted: Mail
    index: int

    @property
    def question(self) -> str:
        """The question as the agent reads it."""
        return f"Who is the {self.wanted.role} of {self.wanted.project}?"


def scenario(seed: int, index: int) -> MailScenario:
    """The scenario at `index` of the stream `seed`.

    Ids are a letter and a digit, unique in the inbox; the mails of one project have five different letters.
    """
    dice = random.Random(f"{NAME}/{seed}/{index}")
    unused = {letter: dice.sample("0123456789", 10) for letter in ID_LETTERS}
    inbox = []
    for project in dice.sample(PROJECTS, PROJECTS_USED):
        letters = dice.sample([letter for letter in ID_LETTERS if unused[letter]], len(ROLES))
        for role, letter in zip(ROLES, letters, strict=True):
            name = dice.choice(NAMES)
            inbox.append(Mail(id=letter + unused[letter].pop(), project=project, role=role, name=name))
    dice.shuffle(inbox)
    return MailScenario(inbox=tuple(inbox), wanted=dice.choice(inbox), index=index)


def search(inbox: tuple[Mail, ...], keyword: str) -> str:
    """`project role id` of the first mails whose subject contains every word of `keyword`."""
    words = keyword.lower().split()
    found = [mail for mail in inbox if all(word in (mail.project, mail.role) for word in words)]
    return "\n".join(f"{mail.project} {mail.role} {mail.id}" for mail in found[:SEARCH_LIMIT]) or "nothing"


def read(inbox: tuple[Mail, ...], mail_id: str) -> str:
    """The text of the mail `mail_id`."""
    for mail in inbox:
        if mail.id == mail_id:
            return f"The {mail.role} of {mail.project} is {mail.name}."
    return "no such mail"


class Inbox:
    """One rollout of a question."""

    tools: list[dict[str, Any]] | None = TOOLS

    def __init__(self, scenario: MailScenario) -> None:
        self.scenario = scenario
        self.opening: list[Message] = [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": scenario.question},
        ]
        self.done = False
        self.reward = 0.0
        self.metrics: dict[str, float] = {}
        self.ending = ""
        self.turns = 0

    def reply(self, message: Message) -> list[Message]:
        """Carry out the tool calls of an assistant message, in their order, up to the answer."""
        self.turns += 1
        calls = message.get("tool_calls") or []
        results: list[Message] = []
        for call in calls:
            argument = parse_call(call)
            if argument is None:
                return self._end("broken (no such call)", broken=True)
            name, value = argument
            if name == "answer":
                wanted = self.scenario.wanted.name
                right = value.strip().lower() == wanted
                return self._end("right" if right else f"wrong ({wanted} is right)", right=right)
            text = (search if name == "search" else read)(self.scenario.inbox, value)
            results.append({"role": "tool", "tool_call_id": call.get("id") or "", "content": text})
        if not calls:
            return self._end("broken (no tool is called)", broken=True)
        if self.turns >= TURN_LIMIT:
            return self._end(f"out of turns (after {TURN_LIMIT})")
        return results

    def _end(self, ending: str, *, right: bool = False, broken: bool = False) -> list[Message]:
        self.done, self.ending = True, ending
        self.reward = 1.0 if right else -1.0 if broken else 0.0
        self.metrics = {"right": float(right), "broken": float(broken), "turns": float(self.turns)}
        return []


def parse_call(call: dict[str, Any]) -> tuple[str, str] | None:
    """Returns (tool, argument) of an OpenAI tool call; None unless it names a tool and gives its one
    argument.
    """
    function = call.get("function") or {}
    name, arguments = str(function.get("name")), function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments)
        except ValueError:
            return None
    parameter = PARAMETERS.get(name)
    if parameter is None or not isinstance(arguments, dict) or list(arguments) != [parameter]:
        return None
    value = arguments[parameter]
    return (name, value) if isinstance(value, str) else None


def environment(scenario: MailScenario, seed: int | None = None) -> Inbox:
    """A new rollout of `scenario`; there is no chance in it, so `seed` changes nothing."""
    return Inbox(scenario)


def show(messages: Sequence[Mapping[str, Any]], ending: str = "") -> str:
    """The question, each call with its result, the answer, and how it ended, for people."""
    lines = []
    for message in messages:
        text = message.get("content") or ""
        if message["role"] == "assistant":
            functions = [call["function"] for call in message.get("tool_calls") or []]
            lines += [f"  {function['name']} {function['arguments']}" for function in functions]
            lines += [f"  {text}"] if text else []
        elif message["role"] == "tool":
            lines.append("    " + text.replace("\n", "; "))
        elif message["role"] == "user":
            lines.append(text)
    return "\n".join([*lines, f"result: {ending}"] if ending else lines)


rollout = rollouts_in(
    environment,
    name=NAME,
    most=DEFAULTS.max_tokens,
    show=show,
    facts=lambda scenario: {"wanted": scenario.wanted.name},
)
