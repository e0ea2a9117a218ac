"""The mail tools that every program here gives its agent, over the inbox that the test wrote."""

from __future__ import annotations

import json
import os
from pathlib import Path

GIVEN = json.loads(Path(os.environ["INBOX"]).read_text(encoding="utf-8"))
QUESTION: str = GIVEN["question"]
MODEL = os.environ["MODEL"]
SYSTEM = "You answer questions about an inbox."
TURNS = 6
TEMPERATURE = 0.05
"""Nearly greedy, which this model does best; greedy replies cannot be trained."""


def search(keyword: str) -> str:
    """List up to five mails whose subject contains every word of the keyword."""
    found = [
        m
        for m in GIVEN["mails"]
        if all(word in (m["project"], m["role"]) for word in keyword.lower().split())
    ]
    return "\n".join(f"{m['project']} {m['role']} {m['id']}" for m in found[:5]) or "nothing"


def read(id: str) -> str:
    """Read the mail with this id."""
    for mail in GIVEN["mails"]:
        if mail["id"] == id:
            return f"The {mail['role']} of {mail['project']} is {mail['name']}."
    return "no such mail"


def schema(name: str, parameter: str, description: str) -> dict[str, object]:
    """A tool in OpenAI's JSON."""
    parameters = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


TOOLS = [
    schema("search", "keyword", "List up to five mails whose subject contains every word of the keyword."),
    schema("read", "id", "Read the mail with this id."),
    schema("answer", "text", "Give the answer to the question; this ends the conversation."),
]


def call(name: str, arguments: dict[str, str]) -> str:
    """What a tool says."""
    return (search if name == "search" else read)(**arguments)


def tell(answer: str | None) -> None:
    """What the test reads."""
    print(json.dumps({"answer": answer}))
