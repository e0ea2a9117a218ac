"""The environment: its scenarios, and one rollout with its reward. Put your own task here."""

from __future__ import annotations

from typing import Any

import art
from art.environments.adapters.environment import RolloutConversation, Scenario, scenario_seed

SIZES = {"train": 200, "val": 50}


class EvenNumbers:
    """Is a number even?"""

    name = "parity"

    def scenarios(self, split: str) -> list[Scenario]:
        """The same in every process, and none in both splits: each is made of a seed."""
        seeds = [scenario_seed(0, split, index) for index in range(SIZES[split])]
        return [Scenario(f"parity/{seed}", {"number": seed // 2 % 100}) for seed in seeds]

    async def rollout(
        self,
        model: art.Model,
        scenario: Scenario,
        *,
        seed: int | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = 4,
    ) -> art.Trajectory:
        number = scenario.data["number"]
        question: Any = {"role": "user", "content": f"Is {number} even? yes or no?"}
        talk = RolloutConversation(
            model, [question], seed=seed, temperature=temperature, max_tokens=max_tokens, request={}
        )
        reply = await talk.ask()  # talk.add(...) and ask again, for a conversation of several turns
        said, right = reply.strip() in ("yes", "no"), reply.strip() == ("no" if number % 2 else "yes")
        return talk.finish(scenario, reward=0.5 * said + 0.5 * right, metrics={"right": float(right)})

    async def close(self) -> None:
        """Ends what the environment has started; nothing here."""
