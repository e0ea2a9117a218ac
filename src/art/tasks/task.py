"""What all tasks share: their face, their defaults, and the attempt itself."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from art.schedule import Leg, legs_to, share_at

if TYPE_CHECKING:
    from art.model import Model
    from art.trajectories import Trajectory

Message = dict[str, Any]
"""An OpenAI chat message."""


class Environment(Protocol):
    """The world of one attempt: it opens the conversation and answers each assistant message."""

    tools: list[dict[str, Any]] | None
    opening: list[Message]
    done: bool
    reward: float
    metrics: dict[str, float]

    def reply(self, message: Message) -> list[Message]:
        """Answer one assistant message; sets `done`, `reward` and `metrics` when the attempt has ended."""
        ...


@dataclass(frozen=True, kw_only=True)
class TaskDefaults:
    """Settings that were measured to work on the task's nano model."""

    base_model: str
    groups: int
    """Scenarios in one training step."""
    group_size: int
    """Attempts at each scenario."""
    steps: int
    learning_rate: float
    warmup_steps: int
    """Steps over which the rate rises before it has its full value."""
    final_share: float
    """Share of the learning rate that is left at the last step."""
    max_tokens: int
    """Limit of one completion, in tokens."""

    def rate_at(
        self,
        step: int,
        *,
        steps: int | None = None,
        learning_rate: float | None = None,
        legs: Sequence[Leg] = (),
    ) -> float:
        """The learning rate of `step` (from 0) in a run of `steps`: a linear rise in a linear fall.

        `legs`: the recorded schedule of a run that was given other numbers of steps on its way, in place of
        `steps` (`art.schedule`).

        With the defaults of tic-tac-toe: 0.67e-3 at step 0, 3.7e-3 at step 5, 0.9e-3 at its last step. The
        fall settles the policy: without it a run ends two to six points lower.
        """
        legs = legs or legs_to(steps or self.steps, [], done=0)
        share = share_at(step, legs, warmup_steps=self.warmup_steps, final_share=self.final_share)
        return (learning_rate or self.learning_rate) * share


class Task(Protocol):
    """The face of a task module; `art.tasks` describes each member."""

    NAME: str
    TITLE: str
    DESCRIPTION: str
    SCORE: str
    SCORE_LABEL: str
    DEFAULTS: TaskDefaults

    def scenario(self, seed: int, index: int) -> Any: ...

    def environment(self, scenario: Any, seed: int | None = None) -> Environment: ...

    async def rollout(
        self,
        model: Model,
        scenario: Any,
        *,
        seed: int | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        timeout: float = 120.0,
    ) -> Trajectory: ...

    def show(self, messages: Sequence[Mapping[str, Any]]) -> str: ...


def turn_seed(seed: int, turn: int) -> int:
    """The seed of the request at `turn` of the attempt `seed`: the same on every machine, below 2**31."""
    digest = hashlib.sha256(f"{seed}/{turn}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


async def attempt(
    model: Model,
    environment: Environment,
    *,
    seed: int | None,
    temperature: float,
    max_tokens: int,
    timeout: float,
    metadata: dict[str, float | int | str | bool | None],
) -> Trajectory:
    """Let `model` act in `environment` until it is done.

    `timeout` is the deadline of one request in seconds. Raises what the model's client raises.
    """
    from art.trajectories import Trajectory

    trajectory = Trajectory(
        messages_and_choices=list[Any](environment.opening),
        tools=cast("list[Any] | None", environment.tools),
        reward=0.0,
        metadata=metadata,
    )
    # Plain dicts of the shape that OpenAI's message types describe.
    record = cast("list[Any]", trajectory.messages_and_choices)
    completions = model.openai_client().chat.completions
    turn = 0
    while not environment.done:
        optional: dict[str, Any] = {}
        if environment.tools:
            optional["tools"] = environment.tools
        if seed is not None:
            optional["seed"] = turn_seed(seed, turn)
        completion = await completions.create(
            model=model.get_inference_name(),
            messages=trajectory.messages(),
            max_tokens=max_tokens,
            temperature=temperature,
            timeout=timeout,
            **optional,
        )
        choice = completion.choices[0]
        record.append(choice)
        record.extend(environment.reply(choice.message.model_dump(exclude_none=True)))
        turn += 1
    trajectory.reward = environment.reward
    trajectory.metrics.update(environment.metrics)
    return trajectory
