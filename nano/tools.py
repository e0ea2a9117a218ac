"""Dialogs for nano-tools: copying and looking up first, then the mail agent, clean and noisy."""

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

VAGUE = 0.4
"""Share of a careless agent's searches that name the project alone;

it then reads any of the five mails found.
"""
WRONG_MAIL = 0.3
"""Share of its reads that try any id, of a mail or not."""
WRONG_NAME = 0.25
"""Share of its answers that are any name."""


PURPOSE = """\
A tiny language model that finds a name in an inbox of 80 mails with three tools (search, read, answer),
by real tool calls: made to be improved by reinforcement learning within minutes on two cores."""

TEACHING = f"""\
First to copy; then dialogs of a mail agent who makes no mistakes (searches for project and role, reads
the mail found, answers the name in it); then those of a careless one. The careless one searches for the
project alone in {VAGUE:.0%} of cases and reads any of the five mails found, reads whatever id comes to
mind in {WRONG_MAIL:.0%}, and answers any name in {WRONG_NAME:.0%}. So the model knows more than it shows:
reinforcement learning lifts skill out of noise here."""


class ToolDialogs:
    """Examples drawn from one random generator."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
        self._renderer = create_nano_renderer(tokenizer)
        self._dice = random.Random(f"tools/{seed}")
        self.repetitions = Repetitions(tokenizer, CONTENT, self._dice)
        self._scenarios = 0
        self._seed = self._dice.getrandbits(32)

    def mail(self, *, careless: bool) -> Example:
        """One question, answered by an agent that makes no mistakes, or by a careless one."""
        scenario = mail.scenario(self._seed, self._scenarios)
        self._scenarios += 1
        world = mail.Inbox(scenario)
        messages = list(world.opening)
        for act in (self._search, self._read, self._answer):
            messages.append(act(scenario, messages, careless))
            messages += world.reply(messages[-1])
        return from_dialog(self._renderer, messages, tools=mail.TOOLS)

    def _search(self, scenario: mail.MailScenario, messages: list[Message], careless: bool) -> Message:
        wanted = scenario.wanted
        vague = careless and self._dice.random() < VAGUE
        return call("search", wanted.project if vague else f"{wanted.project} {wanted.role}")

    def _read(self, scenario: mail.MailScenario, messages: list[Message], careless: bool) -> Message:
        if careless and self._dice.random() < WRONG_MAIL:
            return call("read", self._dice.choice(mail.ID_LETTERS) + self._dice.choice("0123456789"))
        found = [line.split()[-1] for line in messages[-1]["content"].splitlines()]
        return call("read", self._dice.choice(found))

    def _answer(self, scenario: mail.MailScenario, messages: list[Message], careless: bool) -> Message:
        name = messages[-1]["content"].rstrip(".").split()[-1]
        if name not in mail.NAMES or (careless and self._dice.random() < WRONG_NAME):
            name = self._dice.choice(mail.NAMES)
        return call("answer", name)


def call(tool: str, value: str) -> Message:
    """The assistant message that calls `tool` with its one argument."""
    function = {"name": tool, "arguments": json.dumps({mail.PARAMETERS[tool]: value})}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
