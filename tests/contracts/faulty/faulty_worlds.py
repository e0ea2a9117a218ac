"""Environments with a fault, against ART's own protocols. Each fault has a name:

hangs: it never answers. dies: it ends its program, as far as its thread can. floods: it answers with 50 MB.
nan, word: such rewards. prompt: its first message has 10 MB. "": none.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

from worlds import Echo, Guess

import art
from art.environments.adapters.environment import Scenario
from art.environments.adapters.registry import find_environment

FAULTS = ("hangs", "dies", "floods", "nan", "word", "prompt")
FLOOD, PROMPT = "flood " * (50_000_000 // 6), "word " * 2_000_000


def commit(fault: str) -> str:
    """Does what a step with this fault does. Returns its observation."""
    if fault == "hangs":
        threading.Event().wait()
    if fault == "dies":
        sys.exit(3)
    return FLOOD if fault == "floods" else ""


def reward_of(fault: str) -> Any:
    return {"nan": float("nan"), "word": "great"}.get(fault, 1.0)


class FaultyGuess(Guess):
    """One question; with `floods` a second one."""

    def __init__(self, fault: str = "") -> None:
        self.fault, self.left = fault, 2

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        return PROMPT if self.fault == "prompt" else "Guess a number from 0 to 9.", {}

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        self.left -= 1
        return commit(self.fault), reward_of(self.fault), self.fault != "floods" or not self.left, False, {}


class FaultyEcho(Echo):
    """A rollout of a user's own, whose reward is not a number, or that never ends."""

    name = "python:faulty_worlds:FaultyEcho"

    def __init__(self, fault: str = "", **sizes: int) -> None:
        super().__init__(**sizes)
        self.fault = fault

    async def rollout(self, model: art.Model, scenario: Any, **given: Any) -> art.Trajectory:
        if self.fault == "hangs":
            await asyncio.Event().wait()
        if self.fault == "prompt":
            scenario = type(scenario)(scenario.id, {"word": PROMPT})
        one = await super().rollout(model, scenario, **given)
        one.reward = reward_of(self.fault)
        return one


class AllFaults:
    """A scenario for each fault, and two without one."""

    name = "python:faulty_worlds:AllFaults"

    def scenarios(self, split: str) -> list[Scenario]:
        faults = (*FAULTS, "", "none") if split == "train" else ("",)
        return [Scenario(f"{split}/{fault}", {"fault": fault.removeprefix("none")}) for fault in faults]

    async def rollout(self, model: art.Model, scenario: Scenario, **given: Any) -> art.Trajectory:
        fault = scenario.data["fault"]
        world = find_environment(
            "gymnasium:faulty_worlds:FaultyGuess", fault=fault, deadline_s=2.0 if fault == "hangs" else 60.0
        )
        return await world.rollout(model, world.scenarios("train")[0], **given)

    async def close(self) -> None: ...


class WordAsReward(FaultyEcho):
    """Some scenarios of the split "train" have a word as reward, all others a number."""

    async def rollout(self, model: art.Model, scenario: Any, **given: Any) -> art.Trajectory:
        one = await super().rollout(model, scenario, **given)
        one.reward = "great" if int(scenario.data["word"][1:]) % 4 == 0 else 1.0  # type: ignore[assignment]
        return one


class HalfHangs(FaultyEcho):
    """The rollouts of every other scenario of the split "train" never end."""

    async def rollout(self, model: art.Model, scenario: Any, **given: Any) -> art.Trajectory:
        if scenario.id in {one.id for one in self.scenarios("train")[::2]}:
            await asyncio.Event().wait()
        one = await super().rollout(model, scenario, **given)
        one.reward = 1.0
        return one
