"""A game of two roles: red says a word, and blue, who is told it, should say the same."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import art
from art.environments.adapters.environment import RolloutConversation, Scenario, scenario_seed
from art.environments.tasks import turn_seed

WORDS = ("yes", "no", "maybe")
VALUES = {"maybe": 1.0, "no": 0.5}
"""What a word of red is worth to red."""


def word(text: str) -> str:
    return text.strip().strip("'.").lower()


class RepeatGame:
    name = "repeat"
    roles = ("red", "blue")

    def __init__(self, broken: str = "") -> None:
        self.broken = broken
        """What is wrong: "no val", "equal" rewards, or an episode of the first scenario: "fails", "half",
        "hangs".
        """
        self.closed = False

    def scenarios(self, split: str) -> Sequence[Scenario]:
        count = 0 if (self.broken, split) == ("no val", "val") else 6
        seeds = [scenario_seed(0, split, index) for index in range(count)]
        return [Scenario(f"repeat/{seed}", {"other": WORDS[seed // 2 % 3]}) for seed in seeds]

    async def play(
        self,
        policies: Mapping[str, art.Model[Any, Any]],
        scenario: Scenario,
        *,
        seed: int | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
    ) -> Mapping[str, art.Trajectory]:
        if self.broken == "fails" and scenario == self.scenarios("train")[0]:
            raise RuntimeError("no board")

        if self.broken == "hangs":
            await asyncio.Event().wait()

        def talk(role: str, question: str) -> RolloutConversation:
            return RolloutConversation(
                policies[role],
                [{"role": "user", "content": question}],
                seed=None if seed is None else turn_seed(seed, self.roles.index(role)),
                temperature=temperature,
                max_tokens=max_tokens or 4,
                request={},
            )

        red = talk("red", "respond with yes, no or maybe")
        said = word(await red.ask())
        blue = talk("blue", f"just respond with {said} or {scenario.data['other']}")
        repeated = word(await blue.ask()) == said and said in WORDS
        played = {
            "red": red.finish(scenario, reward=VALUES.get(said, 0.0), metrics={"maybe": said == "maybe"}),
            "blue": blue.finish(scenario, reward=float(repeated), metrics={"repeated": repeated}),
        }
        if self.broken == "equal":
            for one in played.values():
                one.reward = 0.5
        return {"red": played["red"]} if self.broken == "half" else played

    async def close(self) -> None:
        self.closed = True
