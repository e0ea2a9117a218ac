"""Environments with a fault, registered in reasoning-gym, textarena, Gymnasium and SkyRL-Gym."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import skyrl_gym
import textarena
from faulty_worlds import PROMPT, FaultyGuess, commit, reward_of
from reasoning_gym.factory import ProceduralDataset, register_dataset
from registered_world import RegisteredGuess
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
from textarena.envs.registration import register


@dataclass
class FaultyConfig:
    fault: str = ""
    seed: int | None = None
    size: int = 100

    def validate(self) -> None: ...


class FaultyDataset(ProceduralDataset):
    def __init__(self, config: FaultyConfig) -> None:
        super().__init__(config=config, seed=config.seed, size=config.size)

    def __getitem__(self, index: int) -> dict[str, Any]:
        question = f"{self.seed}-{index}: {PROMPT if self.config.fault == 'prompt' else 'Guess.'}"
        return {"question": question, "answer": "1", "metadata": {}}

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> Any:
        commit(self.config.fault)
        return reward_of(self.config.fault)


class FaultyGame(textarena.Env):
    """A game of one player."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self.state = textarena.SinglePlayerState(num_players=num_players, seed=seed)
        self.state.reset(game_state={})
        text = PROMPT if self.fault == "prompt" else "Guess."
        self.state.add_observation(message=text, observation_type=textarena.ObservationType.GAME_MESSAGE)
        self.moves = 0

    def step(self, action: str) -> Any:
        self.moves += 1
        flood = commit(self.fault)
        if flood and self.moves == 1:
            self.state.add_observation(message=flood, observation_type=textarena.ObservationType.GAME_MESSAGE)
        else:
            self.state.set_outcome(reward=reward_of(self.fault), reason="It is over.")
        return self.state.step()


class FaultyReply(BaseTextEnv):
    def __init__(self, env_config: Any = None, extras: Any = None) -> None:
        super().__init__()
        self.fault = str(env_config["fault"])

    def init(self, prompt: Any) -> tuple[Any, dict[str, Any]]:
        return [{"role": "user", "content": PROMPT if self.fault == "prompt" else "Guess."}], {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        self.turns += 1
        flood = commit(self.fault)
        return BaseTextEnvStepOutput(
            observations=[{"role": "user", "content": flood}],
            reward=reward_of(self.fault),
            done=not flood or self.turns > 1,
            metadata={},
        )


class FaultyRegistered(FaultyGuess, RegisteredGuess):
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        return FaultyGuess.reset(self, seed=seed)


register_dataset("faulty", FaultyDataset, FaultyConfig)
register(id="Faulty-v0", entry_point=FaultyGame)
skyrl_gym.register(id="faulty", entry_point=FaultyReply)
gymnasium.register("Faulty-v0", entry_point=FaultyRegistered, disable_env_checker=True)
