"""Train the agent: run rollouts, make a training step, repeat. A stopped run continues where it was."""

from __future__ import annotations

import argparse

from rollout import rollout
from scenarios import TEST, TRAIN

import art
from art.utils import iterate_dataset


async def evaluate(model: art.TrainableModel) -> None:
    """Log how the newest step does on scenarios that it never learned from."""
    trajectories = await art.gather_trajectories(
        (rollout(model, question) for question in TEST for _ in range(8)), pbar_desc="evaluate"
    )
    await model.log(trajectories, split="val")
    mean = sum(float(trajectory.reward) for trajectory in trajectories) / len(trajectories)
    print(f"step {await model.get_step()}: mean reward {mean:.2f} on the test scenarios", flush=True)


async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(name=options.name, project="__PROJECT__", base_model=options.base_model)
    async with art.LocalBackend() as backend:
        await model.register(backend)
        first = await model.get_step()  # a stopped run goes on here
        await evaluate(model)
        for batch in iterate_dataset(TRAIN, groups_per_step=6, num_epochs=1000, initial_step=first):
            if batch.step >= options.steps:
                break
            groups = await art.gather_trajectory_groups(
                (
                    art.TrajectoryGroup(rollout(model, question) for _ in range(options.group_size))
                    for question in batch.items
                ),
                pbar_desc=f"step {batch.step + 1}",
                max_exceptions=0.1,
            )
            result = await model.train(groups, config=art.TrainConfig(learning_rate=options.learning_rate))
            await model.delete_checkpoints()  # all but the newest and the best on the test scenarios
            if result.step % 10 == 0 or result.step == options.steps:
                await evaluate(model)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-model", default="__BASE_MODEL__", help="a hub name, a folder, or art/nano")
    parser.add_argument("--name", default="agent-001", help="one name a run; the same name goes on with it")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--group-size", type=int, default=16, help="rollouts of each scenario")
    parser.add_argument("--learning-rate", type=float, default=float("__LEARNING_RATE__"))
    return parser.parse_args()


if __name__ == "__main__":
    art.run(main(read_options()))  # as asyncio.run; Ctrl-C ends it in one line
