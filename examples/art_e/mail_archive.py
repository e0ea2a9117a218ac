"""The world of the mail agent: an archive of mails in SQLite with full-text search, and questions about it.

Each scenario has an archive of its own, drawn from its number. Nothing can be learned by heart: the agent has
to search, to find the right line, to read that mail and to answer with the name in it.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
MOST_FOUND = 5
PARAMETERS = {"search": "keyword", "read": "id", "answer": "text"}
DESCRIPTIONS = {
    "search": "List up to five mails that contain every word of the keyword.",
    "read": "Read the mail with this id.",
    "answer": "Give the answer to the question; this ends the conversation.",
}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": DESCRIPTIONS[name],
            "parameters": {
                "type": "object",
                "properties": {parameter: {"type": "string"}},
                "required": [parameter],
            },
        },
    }
    for name, parameter in PARAMETERS.items()
]


@dataclass(frozen=True)
class Mail:
    id: str
    project: str
    role: str
    name: str

    @property
    def subject(self) -> str:
        return f"{self.project} {self.role}"

    @property
    def body(self) -> str:
        return f"The {self.role} of {self.project} is {self.name}."


@dataclass(frozen=True)
class MailQuestion:
    """The mails of an archive, and the one of them that has the answer."""

    mails: tuple[Mail, ...]
    wanted: Mail

    @property
    def text(self) -> str:
        return f"Who is the {self.wanted.role} of {self.wanted.project}?"

    @property
    def opening(self) -> list[dict[str, Any]]:
        return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": self.text}]


def draw_question(stream: str, number: int) -> MailQuestion:
    """Returns question `number` of a stream; two streams share none but by chance."""
    dice = random.Random(f"{stream}/{number}")
    unused = {letter: dice.sample("0123456789", 10) for letter in ID_LETTERS}
    mails = []
    for project in dice.sample(PROJECTS, PROJECTS_USED):
        letters = dice.sample([letter for letter in ID_LETTERS if unused[letter]], len(ROLES))
        for role, letter in zip(ROLES, letters, strict=True):
            mails.append(Mail(letter + unused[letter].pop(), project, role, dice.choice(NAMES)))
    dice.shuffle(mails)
    return MailQuestion(tuple(mails), dice.choice(mails))


class MailArchive:
    """The mails of a question in a database of their own, with SQLite's full-text index FTS5."""

    def __init__(self, question: MailQuestion) -> None:
        self._database = sqlite3.connect(":memory:", check_same_thread=False)  # tools may run in threads
        self._database.execute("CREATE VIRTUAL TABLE mails USING fts5(id UNINDEXED, subject, body)")
        rows = [(mail.id, mail.subject, mail.body) for mail in question.mails]
        self._database.executemany("INSERT INTO mails VALUES (?, ?, ?)", rows)

    def search(self, keyword: str) -> str:
        """Returns a line for each of the best matches: subject and id."""
        words = ['"{}"'.format(word.replace('"', '""')) for word in keyword.split()]
        if not words:
            return "nothing"
        found = self._database.execute(
            "SELECT subject, id FROM mails WHERE mails MATCH ? ORDER BY rank, rowid LIMIT ?",
            (" ".join(words), MOST_FOUND),
        )
        return "\n".join(f"{subject} {mail_id}" for subject, mail_id in found) or "nothing"

    def read(self, mail_id: str) -> str:
        found = self._database.execute("SELECT body FROM mails WHERE id = ?", (mail_id,)).fetchone()
        return "no such mail" if found is None else str(found[0])

    def close(self) -> None:
        self._database.close()


def read_call(call: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns the tool and its argument; None for an unknown tool or other arguments than its one."""
    function = call.get("function") or {}
    name = str(function.get("name"))
    try:
        arguments = json.loads(function.get("arguments") or "")
    except json.JSONDecodeError:
        return None
    if not isinstance(arguments, dict) or list(arguments) != [PARAMETERS.get(name)]:
        return None
    value = arguments[PARAMETERS[name]]
    return (name, value) if isinstance(value, str) else None


def make_call(name: str, value: str, number: int) -> dict[str, Any]:
    """Returns the assistant message that calls a tool."""
    function = {"name": name, "arguments": json.dumps({PARAMETERS[name]: value})}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def demonstration(number: int) -> list[dict[str, Any]]:
    """Returns a noisy demonstration.

    Half of them search for the project alone, and then read mails of the list until one answers the question,
    at most three. In one of five the answer is any name.
    """
    question = draw_question("demonstrations", number)
    dice = random.Random(f"clerk/{number}")
    archive = MailArchive(question)
    messages = list(question.opening)

    def act(name: str, value: str) -> str:
        messages.append(make_call(name, value, len(messages)))
        if name == "answer":
            return ""
        text = archive.search(value) if name == "search" else archive.read(value)
        messages.append({"role": "tool", "tool_call_id": f"call_{len(messages) - 1}", "content": text})
        return text

    vague = dice.random() < 0.5
    lines = act("search", question.wanted.project if vague else question.wanted.subject).splitlines()
    dice.shuffle(lines)
    said = ""
    for line in lines[:3]:
        said = act("read", line.split()[-1])
        if question.wanted.subject in line:
            break
    act("answer", said.rstrip(".").split()[-1] if dice.random() < 0.8 else dice.choice(NAMES))
    archive.close()
    return messages


def quality_of(messages: Sequence[Mapping[str, Any]]) -> float:
    """Returns how good a conversation is, 0 to 1, as a careful reader of it would say.

    A right answer is one that a mail said which was read; each turn costs a little. This is what the judge
    that runs here goes by.
    """
    asked = next(str(one["content"]) for one in messages if one["role"] == "user")
    fact = asked.removeprefix("Who is ").removesuffix("?").lower()
    turns = sum(one["role"] == "assistant" for one in messages)
    read = [str(one["content"]).lower() for one in messages if one["role"] == "tool"]
    calls = [call for one in messages if one["role"] == "assistant" for call in one.get("tool_calls") or []]
    last = read_call(calls[-1]) if calls else None
    if last is None:
        return 0.0
    if last[0] != "answer" or f"{fact} is {last[1].strip().lower()}." not in read:
        return 0.3
    return max(0.4, 1.15 - 0.05 * turns)


def reference_scores() -> dict[str, float]:
    """Returns the share of right answers of who says any name, and of the demonstrations."""
    shown = [
        read_call(demonstration(number)[-1]["tool_calls"][0])
        == ("answer", draw_question("demonstrations", number).wanted.name)
        for number in range(300)
    ]
    return {"any name": 1 / len(NAMES), "the demonstrations": sum(shown) / len(shown)}
