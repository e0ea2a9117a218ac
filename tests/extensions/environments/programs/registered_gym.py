"""Environments of a user in SkyRL-Gym's registry."""

from __future__ import annotations

from typing import Any

import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput


class Lengths(BaseTextEnv):
    """Rewards each reply with its length times its turn's number, and keeps only the first word of it."""

    closed = 0

    def __init__(self, env_config: Any, extras: dict[str, Any]) -> None:
        super().__init__()
        self.scale, self.max_turns = float(env_config.scale), int(extras.get("max_turns", 2))
        self.fault = extras.get("fault")

    def init(self, prompt: Any) -> Any:
        prompt[-1]["content"] += f" {self.max_turns} turns."
        return [{"role": "system", "content": "Talk."}, *prompt], {}

    def step(self, action: str) -> Any:
        self.turns += 1
        if self.fault == "raises":
            raise KeyError("no lengths")
        return BaseTextEnvStepOutput(
            observations=[{"role": "user", "content": f"turn {self.turns}"}],
            reward="much" if self.fault == "text" else self.scale * self.turns * len(action),
            done=self.turns >= self.max_turns,
            metadata={},
            postprocessed_action=action.split(" ")[0],
        )

    def close(self) -> None:
        Lengths.closed += 1

    def get_metrics(self) -> dict[str, Any]:
        return {"steps": self.turns, "name": "lengths"}


skyrl_gym.register(id="lengths", entry_point=Lengths)
