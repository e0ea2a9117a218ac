"""The program whose run `kills.py` disturbs: tic-tac-toe as a user writes it, every request with a seed.

    python -m bench.nodes.kill_program --path RUN --steps 4 [--cluster HOST:6379]

One request at a time, each computed from its first token: two undisturbed runs end with the same bytes. A
line of JSON a step says what became of its rollouts.
"""

from __future__ import annotations

import argparse
import asyncio
import json

import art
from art.client.backends.local_server import SupervisorLimits
from art.environments.tasks import tic_tac_toe

PROJECT, NAME = "kills", "player"
SEED = 11


async def play(model: art.TrainableModel, place: int, number: int, turn: asyncio.Semaphore) -> art.Trajectory:
    async with turn:
        scenario = tic_tac_toe.scenario(SEED, place)
        return await tic_tac_toe.rollout(model, scenario, seed=SEED * 1_000_003 + 64 * place + number)


async def main(options: argparse.Namespace) -> None:
    settings = {
        "engine": {"options": {"reuse_prefixes": False}, "replicas": options.replicas},
        "trainer": {"ranks": options.ranks} if options.ranks > 1 else {},
        # Somebody kills them all the time: that is no reason to give one up.
        "control": {"restarts": 10_000, "job_attempts": 1_000},
    }
    where = {"cluster": options.cluster} if options.cluster else {}
    limits = SupervisorLimits(restarts=10_000)
    model = art.TrainableModel(name=NAME, project=PROJECT, base_model="art/nano-games")
    async with art.LocalBackend(
        path=options.path, server_options=settings, supervisor_limits=limits, **where
    ) as backend:
        await model.register(backend)
        for step in range(await model.get_step(), options.steps):
            turn = asyncio.Semaphore(1)
            groups = await art.gather_trajectory_groups(
                art.TrajectoryGroup(
                    play(model, step * options.groups + index, number, turn) for number in range(options.size)
                )
                for index in range(options.groups)
            )
            result = await model.train(groups, config=art.TrainConfig(learning_rate=2e-3))
            done = sum(len(group) for group in groups)
            line = {
                "step": await model.get_step(),
                "rollouts": done,
                "failed": options.groups * options.size - done,
                "sheet": result.metrics if hasattr(result, "metrics") else {},
            }
            print(json.dumps(line, default=str), flush=True)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", required=True)
    parser.add_argument("--cluster", help="HOST:6379; without it, all is on this machine")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main(read_options()))
