"""Small text environments of a user: one that works, and one for each way to fail."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import art
from art.environments.adapters.environment import RolloutConversation, Scenario, check_split, scenario_seed


class Guess:
    """A number from 0 to 9 is to be guessed within five turns: 1 for the number, -0.1 for each other."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.number, self.left = (seed or 0) // 2 % 10, 5
        return "Guess a number from 0 to 9.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        guess = int(action) if action.strip().isdigit() else -1
        right = guess == self.number
        hint = "Right." if right else "Higher." if guess < self.number else "Lower."
        reward = 1.0 if right else -0.1
        return (
            hint,
            reward,
            right,
            not right and self.left == 0,
            {"right": right, "distance": 0, "words": hint},
        )


class FailsInReset(Guess):
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        raise KeyError("no board")


class FailsInStep(Guess):
    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        raise RuntimeError("the board is gone")


class HangsInStep(Guess):
    """It waits for what never happens."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        threading.Event().wait()
        raise AssertionError("nobody sets it")


class ShowsNumbers(Guess):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return [1, 2, 3], {}


class GivesTwo(Guess):
    def step(self, action: str) -> Any:
        return "fine", 1.0


class TakesNoSeed(Guess):
    def reset(self) -> Any:
        return "Guess.", {}


class OlderGuess(Guess):
    """`step` gives four values, as gym's did, and `reset` the observation alone."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0]

    def step(self, action: str) -> Any:
        observation, reward, ended, cut, info = super().step(action)
        return observation, reward, ended or cut, info


class Echo:
    """An environment written against the protocol itself."""

    name = "python:worlds:Echo"

    def __init__(self, *, train: int = 12, val: int = 12) -> None:
        self.sizes = {"train": train, "val": val}

    def scenarios(self, split: str) -> Sequence[Scenario]:
        check_split(self.name, split)
        seeds = [scenario_seed(0, split, index) for index in range(self.sizes[split])]
        return [Scenario(f"echo/{seed}", {"word": f"w{seed}"}) for seed in seeds]

    async def rollout(
        self,
        model: art.Model,
        scenario: Scenario,
        *,
        seed: int | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
    ) -> art.Trajectory:
        said = RolloutConversation(
            model,
            [{"role": "user", "content": f"Say {scenario.data['word']}"}],
            seed=seed,
            temperature=temperature,
            max_tokens=max_tokens,
            request={},
        )
        right = float(await said.ask() == scenario.data["word"])
        return said.finish(scenario, reward=right, metrics={"right": right})

    async def close(self) -> None: ...
