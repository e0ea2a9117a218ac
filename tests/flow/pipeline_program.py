"""A run of the PipelineTrainer on a server of its own, to be killed and started again.

python pipeline_program.py FOLDER STEPS
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import art
from art.pipeline_trainer import PipelineTrainer, make_group_rollout_fn
from art.tasks import yes_no_maybe

LEARNING_RATE = 5e-4
SERVER = {"engine": {"options": {"threads": 1}}, "trainer": {"options": {"threads": 1}}}


async def attempt(model: Any, scenario: dict[str, Any], config: Any) -> art.Trajectory:
    return await yes_no_maybe.rollout(model, yes_no_maybe.scenario(0, scenario["metadata"]["scenario_id"]))


async def evaluate(model: Any, step: int, config: Any) -> list[Any]:
    scenarios = [{"metadata": {"scenario_id": 10_000 + n}} for n in range(64)]
    return list(await asyncio.gather(*(attempt(model, one, config) for one in scenarios)))


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


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
