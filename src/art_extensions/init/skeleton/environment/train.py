"""Train on an environment by its name."""

from __future__ import annotations

import argparse
import random

import art
from art.environments.adapters.registry import find_environment

ENVIRONMENT = "__ENVIRONMENT__"
"""Any name that `art environments` lists can stand here."""
OPTIONS: dict = {}


async def main(options: argparse.Namespace) -> None:
    environment = find_environment(ENVIRONMENT, **OPTIONS)
    scenarios = list(environment.scenarios("train"))
    model = art.TrainableModel(name="agent-001", project="__PROJECT__", base_model=options.base_model)
    async with art.LocalBackend() as backend:
        await model.register(backend)
        for step in range(await model.get_step(), options.steps):  # a stopped run continues here
            groups = await art.gather_trajectory_groups(
                (
                    art.TrajectoryGroup(
                        environment.rollout(model, scenario, max_tokens=options.max_tokens) for _ in range(8)
                    )
                    for scenario in random.Random(step).choices(scenarios, k=8)
                ),
                pbar_desc=f"step {step + 1}",
                max_exceptions=0.1,
            )
            await model.train(groups, config=art.TrainConfig(learning_rate=options.learning_rate))
    await environment.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-model", default="__BASE_MODEL__")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--max-tokens", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=float("__LEARNING_RATE__"))
    art.run(main(parser.parse_args()))  # as asyncio.run; Ctrl-C ends it in one line
