"""A world of two steps that each have a reward."""

from __future__ import annotations

from typing import Any

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
