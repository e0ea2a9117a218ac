"""The tasks of `examples/` whose program has an environment: what the cells of `cells.py` are run on.

A program has one class `...Environment(prompt=0)` with the face of `NamedEnvironment`; `prompt` is one of
three ways to ask, and `example.toml` names the metric of a success. Where the environment has
`world(scenario)`, a peer can play it without our client, and `world(scenario).demonstration()` is a
conversation that does the task.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import art
from art.environments.adapters.environment import NamedEnvironment
from art.trajectories import sampled_tokens
from art.types import is_choice
from bench.learning.example_programs import Example

PROMPTS = 3


@dataclass(frozen=True, kw_only=True)
class ExampleTask:
    """One task: what the program rolls out, and what is known of it."""

    name: str
    score: str
    """The metric that is 1 for a success."""
    program: ModuleType

    @classmethod
    def find(cls, name: str) -> ExampleTask:
        """Returns the task of a folder of `examples/`."""
        example = Example.find(name)
        return cls(name=name, score=example.metric, program=example.load())

    def environment(self, prompt: int = 0) -> NamedEnvironment:
        (made,) = [value for value in vars(self.program).values() if self._is_environment(value)]
        return made(prompt)

    def _is_environment(self, value: Any) -> bool:
        """A class of the program's own, not one that it imports."""
        own = isinstance(value, type) and value.__module__ == self.program.__name__
        return own and hasattr(value, "rollout")

    def demonstrations(self, seed: int, count: int) -> list[dict[str, Any]]:
        """Returns conversations about training scenarios, as rows to fine-tune on: each seed has others."""
        environment: Any = self.environment()
        scenarios = environment.scenarios("train")
        chosen = random.Random(f"demonstrations/{seed}").sample(scenarios, min(count, len(scenarios)))
        return [row_of(environment.world(one), environment.world(one).demonstration()) for one in chosen]


def row_of(world: Any, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a conversation in a world as a row to fine-tune on: what the prompt shows is not trained on."""
    opening = len(world.opening)
    weighed = [
        {**one, "weight": 0} if place < opening and one["role"] == "assistant" else dict(one)
        for place, one in enumerate(messages)
    ]
    return {"messages": weighed, **({"tools": world.tools} if world.tools else {})}


def row_of_rollout(trajectory: art.Trajectory) -> dict[str, Any]:
    """Returns a rollout as a row to fine-tune on: what was not sampled is not trained on."""
    weighed = [
        dict(one) if one["role"] != "assistant" or is_choice(item) else {**one, "weight": 0}
        for one, item in zip(trajectory.messages(), trajectory.messages_and_choices, strict=True)
    ]
    return {"messages": weighed, **({"tools": trajectory.tools} if trajectory.tools else {})}


def tokens_of(trajectory: art.Trajectory) -> int:
    """Returns how many tokens were sampled for a rollout."""
    turns = [item for item in trajectory.messages_and_choices if is_choice(item)]
    return sum(sampled_tokens(turn) or 0 for turn in turns)
