"""The guessing game in Gymnasium's registry, where importing this file puts it."""

from __future__ import annotations

import string
from typing import Any

import gymnasium
from worlds import Guess


class RegisteredGuess(Guess, gymnasium.Env[str, str]):
    observation_space = gymnasium.spaces.Text(200, charset=string.printable)
    action_space = gymnasium.spaces.Text(20, charset=string.printable)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        gymnasium.Env.reset(self, seed=seed)
        return super().reset(seed=seed)


gymnasium.register("Guess-v0", entry_point="registered_world:RegisteredGuess")
