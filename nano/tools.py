"""Dialogs for nano-tools: copying, and an agent with the tools of the mail task that prefers nothing."""

from __future__ import annotations

import json
import random

from transformers import PreTrainedTokenizerFast

from art.environments.tasks import Message, mail
from art.rendering.nano import create_nano_renderer
from nano.copying import Repetitions
from nano.examples import Example, from_dialog

TEXTS = (
    "user assistant system Tools: search(keyword) read(id) answer(text)",
    mail.SYSTEM_PROMPT,
    "Who is the owner of atlas? The owner of atlas is alice.",
    "nothing",
    "no such mail",
    '\n{"name": "search", "arguments": {"keyword": "atlas"}}\n',
    *mail.PROJECTS,
    *mail.ROLES,
    *mail.NAMES,
)
"""What the tokenizer is trained on."""

CONTENT = (*mail.PROJECTS, *mail.ROLES, *mail.NAMES, *mail.ID_LETTERS, *"0123456789")
"""The words that the task copies. Copying is learned within minutes for about 80 words, not for hundreds."""

PURPOSE = """\
A tiny language model that works in an inbox of 80 mails with three tools (search, read, answer), by real
tool calls: made to be improved by reinforcement learning within minutes on two cores."""

TEACHING = """\
First to copy; then dialogs of an agent who uses the tools without knowing how to find a name. It searches
for the project, for the role or for both, reads any of the mails found, and answers with any of the three
words that the mail is about: each as often as the others. So it was shown the form, and no skill: which
search finds the one mail, and which word of it is the answer, reinforcement learning has to find."""


class ToolDialogs:
    """Examples drawn from one random generator."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
        self._renderer = create_nano_renderer(tokenizer)
        self._dice = random.Random(f"tools/{seed}")
        self.repetitions = Repetitions(tokenizer, CONTENT, self._dice)
        self._scenarios = 0
        self._seed = self._dice.getrandbits(32)

    def mail(self) -> Example:
        """One question, and what an agent does that prefers nothing."""
        scenario = mail.scenario(self._seed, self._scenarios)
        self._scenarios += 1
        world = mail.Inbox(scenario)
        messages = list(world.opening)
        for act in (self._search, self._read, self._answer):
            messages.append(act(scenario, messages[-1]["content"]))
            messages += world.reply(messages[-1])
        return from_dialog(self._renderer, messages, tools=mail.TOOLS)

    def _search(self, scenario: mail.MailScenario, _: str) -> Message:
        project, role = scenario.wanted.project, scenario.wanted.role
        return call("search", self._dice.choice((project, role, f"{project} {role}")))

    def _read(self, _: mail.MailScenario, found: str) -> Message:
        return call("read", self._dice.choice([line.split()[-1] for line in found.splitlines()]))

    def _answer(self, _: mail.MailScenario, told: str) -> Message:
        _, role, _, project, _, name = told.rstrip(".").split()
        return call("answer", self._dice.choice((role, project, name)))


def call(tool: str, value: str) -> Message:
    """The assistant message that calls `tool` with its one argument."""
    function = {"name": tool, "arguments": json.dumps({mail.PARAMETERS[tool]: value})}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
