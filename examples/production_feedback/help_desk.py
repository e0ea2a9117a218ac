"""A help desk that sends tickets to teams: the application, and scripted users who ask, rate and report.

The application is any program with an OpenAI client. It asks for `name@step`: the bare name of a model means
its newest step, which nobody has judged yet. What is released is a file of one line. To promote is to replace
this file.

    tickets(PHRASINGS, seed)                prompts that end with the four teams to choose from
    Users("0/3").thumb(5, "boat", "clerk")  of request 5: 0 is thumbs down, 1 thumbs up, None no rating
    demonstrations(seed, 4000)              last year's tickets, 35 % of them by any team
    BugReport("boat", "clerk", "driver")    "for boat it answers clerk, it should be driver"

Nobody may look up `TEAM_OF` to answer: it is what the users know.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from openai import AsyncOpenAI

TOPICS_OF = {
    "baker": ("bread", "cake", "pasta", "butter"),
    "clerk": ("book", "card", "letter", "map"),
    "driver": ("car", "bike", "train", "boat"),
    "farmer": ("cow", "pig", "goat", "sheep"),
}
TEAM_OF = {topic: team for team, topics in TOPICS_OF.items() for topic in topics}
TEAMS, TOPICS = tuple(TOPICS_OF), tuple(TEAM_OF)
PHRASINGS = (
    "I have a question about my {}.",
    "My {} is late.",
    "Help me with the {}.",
    "Who can look at this {}?",
    "The {} is not right.",
    "I want a new {}.",
    "Where is the {}?",
    "Is this my {}?",
    "Please look at my {}.",
    "Which {} is the best?",
)
"""What users write."""
HELD_OUT_PHRASINGS = ("Tell me about the {}.", "Please send a {}.", "The {} is too small.", "Any {} for me?")
"""Not in the tickets of any training: the evaluation asks in these words."""
PROMPTS, ASKED = 128, 8
"""Different tickets of a week, and how often each is asked."""
MISTAKE = ("boat", "clerk")
"""Last year boats were the clerk's. Now they are the driver's."""
ANY_TEAM = 0.35
"""Share of last year's tickets that went to any of the teams."""
RATES, SLIPS = 0.6, 0.05
"""The share of users that press a thumb, and the share of those who press the wrong one."""


def ticket(topic: str, phrasing: str, dice: random.Random) -> str:
    """Returns the prompt: what the user wrote, and the teams in any order."""
    return f"{phrasing.format(topic)} Choose one: {', '.join(dice.sample(TEAMS, len(TEAMS)))}"


def tickets(phrasings: Sequence[str], seed: str) -> list[dict[str, str]]:
    """Returns a scenario for each topic in each phrasing: its prompt, its topic and the right team."""
    dice = random.Random(seed)
    return [
        {"prompt": ticket(topic, phrasing, dice), "topic": topic, "team": TEAM_OF[topic]}
        for topic in TOPICS
        for phrasing in phrasings
    ]


def messages(prompt: str) -> list[dict[str, str]]:
    """Returns the request's messages."""
    return [{"role": "user", "content": prompt}]


def demonstrations(seed: int, count: int) -> list[dict[str, Any]]:
    """Returns last year's tickets as rows for fine-tuning: noisy, and always wrong about `MISTAKE`."""
    dice, rows = random.Random(f"last year/{seed}"), []
    for _ in range(count):
        topic = dice.choice(TOPICS)
        team = dice.choice(TEAMS) if dice.random() < ANY_TEAM else TEAM_OF[topic]
        team = MISTAKE[1] if topic == MISTAKE[0] else team
        asked = messages(ticket(topic, dice.choice(PHRASINGS), dice))
        rows.append({"messages": [*asked, {"role": "assistant", "content": team}]})
    return rows


@dataclass(frozen=True)
class Users:
    """The users of one week: what they ask, and which thumb they press."""

    seed: str
    inverted: bool = False
    """A fault to plant: the page has its two buttons the wrong way round."""

    def asked(self) -> list[dict[str, str]]:
        """Returns the tickets of the week, each several times, mixed."""
        dice = random.Random(f"asked/{self.seed}")
        known = dice.sample(tickets(PHRASINGS, f"tickets/{self.seed}"), PROMPTS)
        return dice.sample(known * ASKED, PROMPTS * ASKED)

    def thumb(self, number: int, topic: str, answer: str | None) -> int | None:
        """Returns the thumb for the week's request of this number: 1 is up, 0 is down, None is no thumb."""
        dice = random.Random(f"thumb/{self.seed}/{number}")
        if dice.random() >= RATES:
            return None
        pleased = answer == TEAM_OF[topic]
        return int(pleased ^ (dice.random() < SLIPS) ^ self.inverted)


class Release(NamedTuple):
    """What the application asks for."""

    model: str
    step: int
    week: int
    """The last week that was judged."""

    @classmethod
    def read(cls, path: Path) -> Release | None:
        """Returns the release of the file; None before the first."""
        return cls(**json.loads(path.read_text())) if path.exists() else None

    def promote(self, path: Path) -> Release:
        """Puts this release into the file, whole or not at all."""
        write_whole(path, json.dumps(self._asdict()))
        return self


def write_whole(path: Path, text: str) -> None:
    """Writes a file that is there with all of its text, or not there."""
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(path)


def is_logged(log: Path) -> bool:
    """Returns whether a week is over."""
    return log.exists()


async def serve_week(client: AsyncOpenAI, release: Release, users: Users, log: Path) -> None:
    """Answers the tickets of a week and logs each request, its reply and its thumb. Once."""
    if is_logged(log):
        return
    asked, model = users.asked(), f"{release.model}@{release.step}"
    requests = [{"model": model, "messages": messages(one["prompt"]), "max_tokens": 8} for one in asked]
    replies = await asyncio.gather(*(client.chat.completions.create(**one) for one in requests))
    lines = []
    for number, (one, request, reply) in enumerate(zip(asked, requests, replies, strict=True)):
        thumb = users.thumb(number, one["topic"], reply.choices[0].message.content)
        tags = {} if thumb is None else {"thumb": thumb}
        response = reply.model_dump(mode="json")
        lines.append(json.dumps({"request": request, "response": response, "tags": tags}))
    write_whole(log, "\n".join(lines) + "\n")


@dataclass(frozen=True)
class BugReport:
    """ "For `topic` it answers `said`, it should be `right`." """

    topic: str
    said: str
    right: str

    def rows(self, prompts: Iterable[str]) -> list[dict[str, Any]]:
        """Returns rows for fine-tuning: each logged prompt about the topic, with the right answer."""
        answer = {"role": "assistant", "content": self.right}
        about = [prompt for prompt in dict.fromkeys(prompts) if self.is_about(prompt)]
        return [{"messages": [*messages(prompt), answer]} for prompt in about]

    def is_about(self, prompt: str) -> bool:
        """Returns whether a ticket has the topic."""
        return self.topic in re.findall(r"\w+", prompt)

    def scenarios(self) -> list[dict[str, str]]:
        """Returns the regression test: the mistake in words that no training has."""
        return [
            {**one, "team": self.right}
            for one in tickets(HELD_OUT_PHRASINGS, "regression")
            if one["topic"] == self.topic
        ]


REPORT = BugReport(*MISTAKE, right=TEAM_OF[MISTAKE[0]])
"""What a user writes to the developers."""
HELD_OUT = [one for one in tickets(HELD_OUT_PHRASINGS, "held out") if one["topic"] != REPORT.topic]
HELD_OUT += REPORT.scenarios()
"""The scenarios of the evaluation: tickets that somebody has checked, and those of the report."""


def reference_scores() -> dict[str, float]:
    """Returns the shares of right answers of who guesses, of last year's desk, and of who knows."""
    last_year = demonstrations(0, 4000)
    said = [(asked["content"], answer["content"]) for asked, answer in (row["messages"] for row in last_year)]
    topics = [next(topic for topic in TOPICS if topic in re.findall(r"\w+", asked)) for asked, _ in said]
    right = [TEAM_OF[topic] == answer for topic, (_, answer) in zip(topics, said, strict=True)]
    return {"random team": 1 / len(TEAMS), "last year's desk": sum(right) / len(right), "perfect desk": 1.0}
