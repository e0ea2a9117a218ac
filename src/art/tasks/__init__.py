"""Small environments that the quick start, the examples and the tests learn.

Each task is one module with the same face (`art.tasks.task.Task`); importing one needs no torch and no
server.

    task = art.tasks.find("tic-tac-toe")      or "yes-no-maybe", "mail"; ConfigurationError for others
    task.NAME, task.TITLE, task.DESCRIPTION   the name above; a heading; one sentence
    task.SCORE, task.SCORE_LABEL              key in `trajectory.metrics` that says how good a policy is
                                              ("not_lost", "maybe", "right"), 0 to 1; its words for a table
    task.DEFAULTS                             `TaskDefaults`: base_model, groups, group_size, steps,
                                              learning_rate, warmup_steps, final_share, max_tokens;
                                              `rate_at(step)` is the learning rate of a step
    task.scenario(seed, index)                the scenario at `index` of the stream `seed`: a pure function
    await task.rollout(model, scenario, seed=None, temperature=1.0, max_tokens=None, timeout=120.0)
                                              one attempt -> art.Trajectory with reward and metrics
    task.environment(scenario, seed=None)     the world alone, without a model; see below
    task.show(messages)                       an attempt as a few lines of plain text, for people

`rollout` calls `model.openai_client().chat.completions.create(model=model.get_inference_name(), ...)` and
appends `choices[0]`; it raises what the client raises. With `seed`, the seed of each request and every
choice of the world are pure functions of (scenario, seed, turn); without, the world is random and no seed
is sent.

An environment is driven with messages, by `rollout` over HTTP or by anything else on token level:

    world = task.environment(scenario, seed=7)
    world.opening                             the first messages (OpenAI dicts); world.tools: schemas or None
    world.reply({"role": "assistant", ...})   -> the messages that answer it; then look at `world.done`
    world.done, world.reward, world.metrics   reward and metrics are final once done
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

from art.errors import ConfigurationError
from art.tasks.task import Task, TaskDefaults

__all__ = ["NAMES", "Task", "TaskDefaults", "find"]

NAMES = ("tic-tac-toe", "yes-no-maybe", "mail")


def find(name: str) -> Task:
    """The task called `name`; raises ConfigurationError with the known names."""
    if name not in NAMES:
        raise ConfigurationError(f"unknown task {name!r}: choose one of {', '.join(NAMES)}")
    return cast("Task", import_module("art.tasks." + name.replace("-", "_")))
