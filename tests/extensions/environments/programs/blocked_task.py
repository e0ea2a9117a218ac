"""A task of inspect-ai whose code blocks, then one that does not, in one process: prints JSON.

python blocked_task.py BASE_URL KEY
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from environment_program import model_of
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import match
from inspect_ai.solver import TaskState, solver

import art
from art.environments.adapters.registry import find_environment
from art_extensions.environments import inspect_ai as adapter


@solver
def blocks() -> Any:
    async def solve(state: TaskState, generate: Any) -> TaskState:
        state = await generate(state)
        time.sleep(15)  # noqa: ASYNC251  # this is the fault
        return state

    return solve


@task
def blocked() -> Task:
    return Task(dataset=[Sample(input="?", target="no", id=f"{n}") for n in range(3)], solver=blocks())


@task
def free() -> Task:
    return Task(dataset=[Sample(input="?", target="no", id=f"{n}") for n in range(3)], scorer=match())


async def outcomes(model: art.Model, environment: Any, count: int) -> list[str]:
    rollouts = [environment.rollout(model, one) for one in environment.scenarios("val")[:count]]
    done = await asyncio.gather(*rollouts, return_exceptions=True)
    return [
        f"{type(one).__name__}: {one}" if isinstance(one, BaseException) else str(one.reward) for one in done
    ]


async def main(base_url: str, key: str) -> None:
    model = model_of("no", base_url, key)
    adapter.SCORING_S = 1.0
    blocking = find_environment(f"inspect:{__file__}@blocked", time_limit_s=1)
    begun = time.monotonic()
    first = asyncio.create_task(outcomes(model, blocking, 1))
    await asyncio.sleep(0.5)
    told: dict[str, Any] = {"blocked": await outcomes(model, blocking, 1)}
    told["blocked"].insert(0, *await first)
    told["seconds"] = time.monotonic() - begun
    told["following"] = await outcomes(model, blocking, 1)
    await asyncio.sleep(max(0.0, 35 - (time.monotonic() - begun)))
    told["later"] = await outcomes(model, find_environment(f"inspect:{__file__}@free"), 1)
    print(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
