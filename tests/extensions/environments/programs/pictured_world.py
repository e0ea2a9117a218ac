"""A world in Gymnasium's registry that shows pixels, with a text after the first turn."""

from __future__ import annotations

import string
from typing import Any

import gymnasium
import numpy as np


class Picture(gymnasium.Env[Any, str]):
    action_space = gymnasium.spaces.Text(200, charset=string.printable)

    def __init__(self, worded: bool = False, side: int = 2) -> None:
        pixels = gymnasium.spaces.Box(0, 255, (side, 3, 3), np.uint8)
        words = gymnasium.spaces.Text(50, charset=string.printable)
        self.observation_space = gymnasium.spaces.Tuple((words, pixels)) if worded else pixels
        self._is_worded = worded

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.turn = 0
        return self._shown(), {}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.turn += 1
        return self._shown(), float(action == "a door"), self.turn == 2, False, {}

    def _shown(self) -> Any:
        pixels = np.arange(18, dtype=np.uint8).reshape(2, 3, 3) + np.uint8(100 * self.turn)
        return (f"Turn {self.turn}", pixels) if self._is_worded else pixels


gymnasium.register("Picture-v0", entry_point="pictured_world:Picture")
