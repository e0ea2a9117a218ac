"""A world of two steps that each have a reward."""

from __future__ import annotations

from itertools import count
from typing import Any

VISITS = count(1)
WORTH = {"yes": 0.25, "no": 0.5, "maybe": 1.0}


class World:
    def __init__(self) -> None:
        self.step_number = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        return "respond with yes, no or maybe", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.step_number += 1
        reward = WORTH.get(action.strip(), 0.0) * self.step_number
        return "respond with maybe, no or yes", reward, self.step_number == 2, False, {}


class Rooms(World):
    """Rollouts see different words in the second room, which has one name. Each step gives its reason."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        return super().reset(seed=seed)[0], {"state": "door"}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        _, reward, ended, cut, _ = super().step(action)
        seen = f"visit {next(VISITS)}: respond with maybe, no or yes"
        return seen, reward, ended, cut, {"state": "room", "reason": f"step {self.step_number} is {reward:g}"}
