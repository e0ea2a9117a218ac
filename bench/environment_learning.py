"""The learner of `bench.environments`: a program as a user writes it, for a server at an address.

    .venv-environments/bin/python bench/environment_learning.py JOB.json

Prints a line of JSON for the evaluation before, for each step, and for the evaluation after.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import art
from art.environments.adapters.environment import NamedEnvironment
from art.environments.adapters.registry import find_environment


def means(groups: list[art.TrajectoryGroup], score: str) -> dict[str, float]:
    """Mean reward, and the mean of the reported metric, of all rollouts that have one."""
    scored = [one for group in groups for one in group if not isinstance(one.reward, art.Unscored)]
    return {
        "reward": sum(float(one.reward) for one in scored) / len(scored),
        "score": sum(float(one.metrics[score]) for one in scored) / len(scored),
        "rollouts": len(scored),
    }


async def gather(
    model: art.TrainableModel, environment: NamedEnvironment, job: dict[str, Any], split: str, first: int,
    count: int, size: int,
) -> list[art.TrajectoryGroup]:  # fmt: skip
    """Rolls out `count` scenarios of a split in groups of `size`, from index `first` on, in turn."""
    scenarios = environment.scenarios(split)
    chosen = [(first + index) % len(scenarios) for index in range(count)]
    return await art.gather_trajectory_groups(
        (
            art.TrajectoryGroup(
                environment.rollout(
                    model,
                    scenarios[place],
                    seed=job["seed"] * 1_000_003 + (first + index) * 1_000 + rollout,
                    max_tokens=job["max_tokens"],
                )
                for rollout in range(size)
            )
            for index, place in enumerate(chosen)
        ),
        pbar_desc=None,
    )


async def learn(job: dict[str, Any]) -> None:
    options = {"seed": job["seed"], "val": job["evaluations"], **job["options"]}
    environment = find_environment(job["environment"], **options)
    backend = art.RemoteBackend(job["base_url"], job["key"])
    internal = {"init_args": {"full_finetuning": True}} if job["full_finetuning"] else None
    model = art.TrainableModel(
        name="learner", project="bench", base_model=job["base_model"], _internal_config=internal
    )
    await model.register(backend)

    async def evaluate() -> dict[str, float]:
        held_out = await gather(model, environment, job, "val", 0, job["evaluations"], 1)
        return means(held_out, job["score"])

    say(await evaluate())
    for step in range(job["steps"]):
        groups = await gather(
            model, environment, job, "train", step * job["groups"], job["groups"], job["group_size"]
        )
        await model.train(groups, config=art.TrainConfig(learning_rate=job["learning_rate"]))
        say({"step": step, **means(groups, job["score"])})
    say(await evaluate())
    await environment.close()
    await backend.close()


def say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(learn(json.loads(Path(sys.argv[1]).read_text())))
