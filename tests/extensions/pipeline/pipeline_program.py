"""A run of the PipelineTrainer on a server of its own, to be killed and started again.

python pipeline_program.py FOLDER STEPS

Then, on the same server, three steps of `art.overlapped` that are all gathered before the first is trained:
its last line says what became of them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import art
from art.environments.tasks import yes_no_maybe
from art_extensions.pipeline import PipelineTrainer, make_group_rollout_fn

LEARNING_RATE = 1e-3
SERVER = {"engine": {"options": {"threads": 1}}, "trainer": {"options": {"threads": 1}}}


async def attempt(model: Any, scenario: dict[str, Any], config: Any) -> art.Trajectory:
    return await yes_no_maybe.rollout(model, yes_no_maybe.scenario(0, scenario["metadata"]["scenario_id"]))


async def evaluate(model: Any, step: int, config: Any) -> list[Any]:
    scenarios = [{"metadata": {"scenario_id": 10_000 + n}} for n in range(96)]
    return list(await asyncio.gather(*(attempt(model, one, config) for one in scenarios)))


async def gathered_ahead(backend: Any, folder: str) -> list[dict[str, Any]]:
    """Fates and age of each step: three are gathered with the first adapter, and one of them is too old."""
    model: Any = art.TrainableModel(
        name="ahead", project="flow", base_model="art/nano", base_path=folder, report_metrics=[]
    )
    await model.register(backend)
    ended = [asyncio.Event() for _ in range(3)]

    async def gather(step: int) -> list[art.TrajectoryGroup]:
        scenarios = [{"metadata": {"scenario_id": 20_000 + 3 * step + n}} for n in range(3)]
        groups = await art.gather_trajectory_groups(
            (art.TrajectoryGroup(attempt(model, one, None) for _ in range(8)) for one in scenarios),
            pbar_desc=None,
        )
        ended[step].set()
        return groups

    found = []
    async for _, groups in art.overlapped(model, gather, steps=3, max_steps_off_policy=2):
        await asyncio.gather(*(one.wait() for one in ended))
        result = await model.train(groups, learning_rate=LEARNING_RATE, max_steps_off_policy=1)
        fates = {name: row.rollouts for name, row in result.sheet.fates.items()}
        found.append({"fates": fates, "age": result.metrics.get("offpolicy/steps_max")})
    return found


async def main(folder: str, steps: int) -> None:
    model: Any = art.TrainableModel(
        name="agent", project="flow", base_model="art/nano", base_path=folder, report_metrics=[]
    )
    async with art.LocalBackend(path=folder, server_options=SERVER) as backend:
        await model.register(backend)
        print(json.dumps({"step": await model.get_step()}), flush=True)
        trainer: PipelineTrainer[Any, Any] = PipelineTrainer(
            model,
            backend,
            make_group_rollout_fn(attempt, n=8),
            [{"metadata": {"scenario_id": n}} for n in range(10_000)],
            None,
            evaluate,
            learning_rate=LEARNING_RATE,
            num_rollout_workers=16,
            min_batch_size=8,
            max_steps_off_policy=2,
            max_steps=steps,
            eval_every_n_steps=steps,
        )
        await trainer.train()
        print(json.dumps(await gathered_ahead(backend, folder)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
