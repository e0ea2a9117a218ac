"""The world of the summarizer: sheets of facts, what a reader wants to know, and how good a summary is."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

TOPICS: Mapping[str, tuple[str, ...]] = {
    "owner": tuple("alice bob carol dave emma frank grace henry iris jack kate leo maria nina".split()),
    "city": tuple("paris london berlin rome madrid oslo cairo tokyo delhi lima boston denver".split()),
    "color": tuple("red blue green yellow black white pink brown gray orange purple gold".split()),
    "animal": tuple("cat dog horse cow pig sheep goat lion tiger bear wolf fox rabbit".split()),
    "day": tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()),
    "food": tuple("bread rice soup cheese egg pasta salad cake honey butter salt sugar".split()),
    "job": tuple("doctor teacher farmer baker pilot sailor driver painter singer writer".split()),
    "weather": tuple("sun rain snow wind fog storm cloud".split()),
    "number": tuple("one two three four five six seven eight nine ten".split()),
    "place": tuple("house garden river forest beach island mountain valley road bridge".split()),
}
FACTS = 8
WANTED = 3


@dataclass(frozen=True)
class FactSheet:
    """Facts in the order of the sheet, and the topics that the summary is to keep."""

    facts: tuple[tuple[str, str], ...]
    wanted: tuple[str, ...]

    @property
    def prompt(self) -> str:
        lines = "\n".join(f"{topic}: {value}" for topic, value in self.facts)
        return f"{lines}\nSummarize {', '.join(self.wanted)}."

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.prompt}]


def draw_sheet(stream: str, number: int) -> FactSheet:
    """Returns sheet `number` of a stream."""
    dice = random.Random(f"{stream}/{number}")
    topics = dice.sample(sorted(TOPICS), FACTS)
    facts = tuple((topic, dice.choice(TOPICS[topic])) for topic in topics)
    return FactSheet(facts, tuple(dice.sample(topics, WANTED)))


def words_of(summary: str) -> list[str]:
    return re.findall(r"\w+", summary)


def recall(sheet: FactSheet, summary: str) -> float:
    """Returns the share of the wanted facts that the summary says: the topic, and its value behind it."""
    said = words_of(summary)
    pairs = set(pairwise(said))
    kept = [(topic, value) for topic, value in sheet.facts if topic in sheet.wanted]
    return sum(fact in pairs for fact in kept) / len(kept)


def noisy_summary(number: int) -> list[dict[str, str]]:
    """Returns a conversation of somebody who leaves out a wanted fact as often as not, and adds others."""
    sheet = draw_sheet("sloppy", number)
    dice = random.Random(f"writer/{number}")
    said = [fact for fact in sheet.facts if dice.random() < (0.5 if fact[0] in sheet.wanted else 0.4)]
    dice.shuffle(said)
    text = ", ".join(f"{topic} {value}" for topic, value in said or sheet.facts[:1])
    return [*sheet.messages, {"role": "assistant", "content": text}]


def reference_scores() -> dict[str, float]:
    """Returns the mean recall of the demonstrations, and of one who keeps the first facts of the sheet."""
    sheets = [draw_sheet("sloppy", number) for number in range(500)]
    shown = [recall(sheet, noisy_summary(n)[-1]["content"]) for n, sheet in enumerate(sheets)]
    first = [recall(sheet, ", ".join(map(" ".join, sheet.facts[:WANTED]))) for sheet in sheets]
    return {"the demonstrations": sum(shown) / len(shown), "first three facts": sum(first) / len(first)}


def sheet_in(messages: Sequence[Mapping[str, Any]]) -> FactSheet:
    """Returns the sheet that a conversation is about, read from its prompt as a judge reads it."""
    *lines, question = str(messages[0]["content"]).splitlines()
    facts = tuple((topic, value) for topic, _, value in (line.partition(": ") for line in lines))
    return FactSheet(facts, tuple(question.removeprefix("Summarize ").removesuffix(".").split(", ")))


def completeness(messages: Sequence[Mapping[str, Any]]) -> float:
    """Returns the recall of a conversation: what the judge that runs here goes by."""
    return recall(sheet_in(messages), str(messages[-1]["content"]))


def brevity(messages: Sequence[Mapping[str, Any]]) -> float:
    """Returns 1 for a summary of as many words as are wanted, and less for each further one."""
    further = len(words_of(str(messages[-1]["content"]))) - 2 * WANTED
    return max(0.0, 1 - 0.1 * max(0, further))
