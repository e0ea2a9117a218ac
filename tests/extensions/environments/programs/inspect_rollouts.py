"""Tasks of inspect-ai, run where the library is installed: prints JSON.

python inspect_rollouts.py BASE_URL KEY SERVER SERVER_KEY       a scripted endpoint, and a server of ours
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

import inspect_ai
from environment_program import model_of

import art
from art.environments.adapters.registry import find_environment
from art_extensions.evaluation.checkpoint_scores import RolloutSource, evaluate

TASKS = Path(__file__).with_name("inspect_tasks.py")


def named(task: str) -> str:
    return f"inspect:{TASKS}@{task}"


def record(one: art.Trajectory) -> dict[str, Any]:
    reward = one.reward.reason if isinstance(one.reward, art.Unscored) else one.reward
    return {"reward": reward, "metrics": one.metrics, "show": one.metadata["show"]}


async def played(model: art.Model, task: str, **options: Any) -> list[Any]:
    """Each sample at once: its record, or its error."""
    environment = find_environment(named(task), **options)
    jobs = [environment.rollout(model, one, max_tokens=20) for one in environment.scenarios("val")]
    told = await asyncio.gather(*jobs, return_exceptions=True)
    await environment.close()
    return [f"{type(one).__name__}: {one}" if isinstance(one, BaseException) else record(one) for one in told]


def refused(name: str, **options: Any) -> str:
    try:
        find_environment(name, **options).scenarios("train")
    except art.errors.ARTError as error:
        return f"{type(error).__name__}: {error}"
    return "made"


def by_inspect(base_url: str, key: str) -> list[float]:
    """The scores that `inspect eval` gives the samples of `say`."""
    with tempfile.TemporaryDirectory() as folder:
        (log,) = inspect_ai.eval(
            f"{TASKS}@say",
            task_args={"count": 6},
            model="openai-api/art/wrong-at-3",
            model_base_url=base_url,
            model_args={"api_key": key},
            display="none",
            log_dir=folder,
        )
        return [float(sample.scores["exact"].value == "C") for sample in log.samples]


async def trained(server: str, key: str) -> dict[str, Any]:
    """Rollouts with a tool on a server of ours, a step with them, and an evaluation."""
    backend = art.RemoteBackend(server, api_key=key)
    model = art.TrainableModel(name="sums", project="inspect", base_model="art/nano-tools")
    await model.register(backend)
    environment = find_environment(named("sums"), train=2, val=2)
    groups = await art.gather_trajectory_groups(
        [
            art.TrajectoryGroup(environment.rollout(model, one, max_tokens=30) for _ in range(2))
            for one in environment.scenarios("train")
        ],
        pbar_desc=None,
    )
    every = [one for group in groups for one in group]
    for number, one in enumerate(every):
        one.reward = float(number % 2)  # whatever the model did: each is trained
    result = await model.train(groups, config=art.TrainConfig(learning_rate=1e-5))
    source = RolloutSource.of_environment(named("sums"))
    async with backend.adapter_lease(model, 0):
        _, scored = await evaluate(
            model, source, rollouts=4, temperature=1.0, concurrency=4, seed=0, each=2, title=None
        )
    await environment.close()
    return {
        "turns": [one.metrics["turns"] for one in every],
        "tools": [bool(one.tools) for one in every],
        "evaluated": [len(group) for group in scored],
        "sheet": {name: value for name, value in result.metrics.items() if "sheet" in name},
    }


async def main(base_url: str, key: str, server: str, server_key: str) -> None:
    right, mixed = model_of("right", base_url, key), model_of("wrong-at-3", base_url, key)
    handlers = list(logging.getLogger().handlers)
    level = logging.getLogger().level
    told = {
        "ours": [one["reward"] for one in await played(mixed, "say", count=6)],
        "several": await played(right, "several"),
        "chosen": await played(right, "several", score="parts_length"),
        "no score": await played(right, "several", score="length"),
        "unscored": await played(right, "unscored"),
        "fails": await played(right, "fails"),
        "slow": await played(model_of("slow", base_url, key), "say", count=1, time_limit_s=1),
        "val": [len(find_environment(named("say"), val=5).scenarios("val")), refused(named("say"))],
        "needs val": refused(named("say"), train=3),
        "file": refused("inspect:nothing.py@say"),
        "task": refused(named("sing")),
        "package": refused("inspect:evals/gsm8k"),
        "argument": refused(named("say"), counts=3),
        "empty": refused(named("empty")),
        "logging": handlers == logging.getLogger().handlers and level == logging.getLogger().level,
        "trained": await trained(server, server_key),
    }
    told["by inspect"] = await asyncio.to_thread(by_inspect, base_url, key)
    print(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
