"""Say yes, no or maybe. The reward prefers maybe (1.0) to no (0.75) to yes (0.5); any other reply gets 0.

The smallest task that shows a policy changing its mind: one turn, one word, nothing to understand.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from types import MappingProxyType
from typing import Any

from art.environments.tasks import Message, TaskDefaults, rollouts_in

NAME = "yes-no-maybe"
TITLE = "Yes, no, maybe"
DESCRIPTION = "Learn from rewards alone that maybe is better than no, and no better than yes."
SCORE = "maybe"
SCORE_LABEL = "replies that are maybe"
DEFAULTS = TaskDefaults(
    base_model="art/nano-games",
    groups=16,
    group_size=8,
    steps=20,
    learning_rate=1.5e-3,
    warmup_steps=2,
    final_share=0.2,
    max_tokens=4,
)
LARGER: Mapping[str, TaskDefaults] = MappingProxyType(
    {
        "art/smollm2": TaskDefaults(
            base_model="art/smollm2",
            groups=8,
            group_size=8,
            steps=12,
            learning_rate=4e-4,
            warmup_steps=2,
            final_share=0.2,
            max_tokens=6,
            evaluation_rollouts=240,
        )
    }
)

REWARDS = {"maybe": 1.0, "no": 0.75, "yes": 0.5}
VERBS = ("respond", "just respond", "answer", "just answer", "reply")


@dataclass(frozen=True, kw_only=True)
class YesNoMaybeScenario:
    """One question."""

    prompt: str
    index: int


def phrasings() -> list[str]:
    """Every way in which the question is put, in a fixed order."""
    prompts = []
    for verb in VERBS:
        for quote in ("", "'"):
            for count in (3, 2):
                for words in permutations(REWARDS, count):
                    *firsts, last = (f"{quote}{word}{quote}" for word in words)
                    prompts.append(f"{verb} with {', '.join(firsts)} or {last}")
    return prompts


def scenario(seed: int, index: int) -> YesNoMaybeScenario:
    """The scenario at `index` of the stream `seed`."""
    return YesNoMaybeScenario(prompt=random.Random(f"{NAME}/{seed}/{index}").choice(phrasings()), index=index)


def judge(text: str) -> str | None:
    """The word that a reply consists of, whatever its case and final full stop; None if it is another."""
    word = text.strip().lower().removesuffix(".")
    return word if word in REWARDS else None


def worth(text: str) -> float:
    """The reward of a reply."""
    word = judge(text)
    return REWARDS[word] if word else 0.0


class YesNoMaybe:
    """One question and its answer."""

    tools: list[dict[str, Any]] | None = None

    def __init__(self, scenario: YesNoMaybeScenario) -> None:
        self.opening: list[Message] = [{"role": "user", "content": scenario.prompt}]
        self.done = False
        self.reward = 0.0
        self.metrics: dict[str, float] = {}
        self.ending = ""

    def reply(self, message: Message) -> list[Message]:
        """Reward the reply; there is never an answer to it."""
        text = message.get("content") or ""
        word = judge(text)
        self.done = True
        self.reward = worth(text)
        self.ending = f"{word or 'none of the three words'}, worth {self.reward:g}"
        self.metrics = {key: float(key == word) for key in REWARDS} | {"invalid": float(word is None)}
        return []


def environment(scenario: YesNoMaybeScenario, seed: int | None = None) -> YesNoMaybe:
    """The question of `scenario`; there is no chance in it, so `seed` changes nothing."""
    return YesNoMaybe(scenario)


def show(messages: Sequence[Mapping[str, Any]], ending: str = "") -> str:
    """The question, the reply and what it is worth, for people."""
    lines = [f"{message['role']}: {message.get('content') or ''}" for message in messages]
    return "\n".join([*lines, f"result: {ending}"] if ending else lines)


rollout = rollouts_in(environment, name=NAME, most=DEFAULTS.max_tokens, show=show)
