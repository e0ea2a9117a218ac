"""Small environments that the quick start, the examples and the tests learn.

Each task is one module with the same face (`Task`); importing one needs no torch and no server.

    task = art.tasks.find("tic-tac-toe")      or "yes-no-maybe", "mail"; ConfigurationError for others
    task.NAME, task.TITLE, task.DESCRIPTION   the name above; a heading; one sentence
    task.SCORE, task.SCORE_LABEL              key in `trajectory.metrics` that says how good a policy is
                                              ("not_lost", "maybe", "right"), 0 to 1; its words for a table
    task.DEFAULTS                             `TaskDefaults`: base_model, groups, group_size, steps,
                                              learning_rate, warmup_steps, final_share, max_tokens,
                                              evaluation_rollouts; `rate_at(step)` is the learning rate of
                                              a step
    task.LARGER                               base model -> `TaskDefaults`, for other than nano models
    task.scenario(seed, index)                the scenario at `index` of the stream `seed`: a pure function
    await task.rollout(model, scenario, seed=None, temperature=1.0, max_tokens=None, timeout=120.0)
                                              one rollout -> art.Trajectory with reward and metrics
    task.environment(scenario, seed=None)     the world alone, without a model; see below
    task.show(messages, ending)               a rollout as a few lines of plain text, for people: it is
                                              `metadata["show"]` of the trajectory, which `art ui` shows

`rollout` calls `model.openai_client().chat.completions.create(model=model.get_inference_name(), ...)` and
appends `choices[0]`; it raises what the client raises. With `seed`, the seed of each request and every
choice of the world are pure functions of (scenario, seed, turn); without, the world is random and no seed
is sent.

An environment is driven with messages, by `rollout` over HTTP or by anything else on token level:

    world = task.environment(scenario, seed=7)
    world.opening                             the first messages (OpenAI dicts); world.tools: schemas or None
    world.reply({"role": "assistant", ...})   -> the messages that answer it; then look at `world.done`
    world.done, world.reward, world.metrics   reward and metrics are final once done
    world.ending                              how it ended, for people, with what no message says, such as
                                              the opponent's last move: "lost (O plays C3)"; "" until done
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from art.client.options.learning_rates import LORA_RATE, Leg, legs_to, share_at
from art.errors import ConfigurationError
from art.types import SHOW

if TYPE_CHECKING:
    from art.model import Model
    from art.trajectories import Trajectory

__all__ = ["EVALUATION_SEED", "NAMES", "Task", "TaskDefaults", "defaults_of", "find", "task_of"]

Message = dict[str, Any]
"""An OpenAI chat message."""


class Environment(Protocol):
    """The world of one rollout: it opens the conversation and answers each assistant message."""

    tools: list[dict[str, Any]] | None
    opening: list[Message]
    done: bool
    reward: float
    metrics: dict[str, float]
    ending: str

    def reply(self, message: Message) -> list[Message]:
        """Answer one assistant message; sets `done`, `reward`, `metrics` and `ending` when the rollout has
        ended.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class TaskDefaults:
    """Settings that were measured to work on one base model."""

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
    evaluation_rollouts: int = 1000
    """Rollouts before training, and after it."""

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
        `steps` (`art.client.options.learning_rates`).

        With the defaults of tic-tac-toe: 0.67e-3 at step 0, 3.7e-3 at step 5, 0.9e-3 at its last step. The
        fall settles the policy: without it a run ends two to six points lower.
        """
        legs = legs or legs_to(steps or self.steps, [], done=0)
        share = share_at(step, legs, warmup_steps=self.warmup_steps, final_share=self.final_share)
        return (learning_rate or self.learning_rate) * share


class Task(Protocol):
    """The face of a task module; `art.environments.tasks` describes each member."""

    NAME: str
    TITLE: str
    DESCRIPTION: str
    SCORE: str
    SCORE_LABEL: str
    DEFAULTS: TaskDefaults
    LARGER: Mapping[str, TaskDefaults]

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

    def show(self, messages: Sequence[Mapping[str, Any]], ending: str = "") -> str: ...


def turn_seed(seed: int, turn: int) -> int:
    """The seed of the request at `turn` of the rollout `seed`: the same on every machine, below 2**31."""
    digest = hashlib.sha256(f"{seed}/{turn}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


async def run_rollout(
    model: Model,
    environment: Environment,
    *,
    seed: int | None,
    temperature: float,
    max_tokens: int,
    timeout: float,
    metadata: dict[str, float | int | str | bool | None],
    show: Callable[[Sequence[Mapping[str, Any]], str], str],
) -> Trajectory:
    """Runs `model` in `environment` until it is done. What the task shows of it is in its metadata.

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
    trajectory.metadata[SHOW] = show([dict(message) for message in trajectory.messages()], environment.ending)
    return trajectory


def rollouts_in(
    environment: Callable[[Any, int | None], Environment],
    *,
    name: str,
    most: int,
    show: Callable[[Sequence[Mapping[str, Any]], str], str],
    facts: Callable[[Any], Mapping[str, str]] = lambda _: {},
) -> Callable[..., Coroutine[Any, Any, Trajectory]]:
    """Returns `Task.rollout`. `most`: tokens of a completion; `facts`: of a scenario, for the metadata."""

    async def rollout(
        model: Model,
        scenario: Any,
        *,
        seed: int | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        timeout: float = 120.0,
    ) -> Trajectory:
        """Run `model` on one scenario; see `art.environments.tasks`."""
        return await run_rollout(
            model,
            environment(scenario, seed),
            seed=seed,
            temperature=temperature,
            max_tokens=max_tokens or most,
            timeout=timeout,
            metadata={"task": name, "scenario": scenario.index, **facts(scenario)},
            show=show,
        )

    return rollout


EVALUATION_SEED = 1_000_003
"""Evaluation scenarios are drawn far from those of training, the same before and after."""
NAMES = ("tic-tac-toe", "yes-no-maybe", "mail")


def defaults_of(task: Task, base_model: str | None) -> TaskDefaults:
    """Returns the settings that were measured on the base model. Where none were, they are the nano model's,
    for a pretrained one with its learning rate.
    """
    if _is_nano(base_model):
        return task.DEFAULTS
    return task.LARGER.get(base_model or "") or replace(task.DEFAULTS, learning_rate=LORA_RATE)


def task_of(base_model: str | None) -> str:
    """Returns the task that shows most with a base model: the player knows the form of a game, others words.

    >>> task_of(None), task_of("art/smollm2")
    ('tic-tac-toe', 'yes-no-maybe')
    """
    return "tic-tac-toe" if _is_nano(base_model) else "yes-no-maybe"


def _is_nano(base_model: str | None) -> bool:
    return base_model is None or base_model.startswith("art/nano")


def find(name: str) -> Task:
    """The task called `name`; raises ConfigurationError with the known names."""
    if name not in NAMES:
        raise ConfigurationError(f"unknown task {name!r}: choose one of {', '.join(NAMES)}")
    return cast("Task", import_module("art.environments.tasks." + name.replace("-", "_")))
