"""The program whose run `bench.soak` watches: a model that never stops learning, as a user writes it.

    python -m bench.soak.program --path FOLDER --steps 5000

The word that is worth most changes every 40 steps, and each reward has noise, so that every step has a
gradient. Each rollout has two turns, and one of each step fails. Checkpoints and samples are removed as
`docs/internals/reliability.md` says. A line of JSON a step tells that it is done, and the next one begins
with a line of the standard input: whoever looks at the processes sees them idle. Started again, the program
goes on at the newest step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time

import art
from art.client.backends.local_server import SupervisorLimits
from art.environments.tasks import yes_no_maybe

PROJECT, NAME = "soak", "agent"
GROUPS, SIZE = 4, 4
TURNS = 2
STRETCH = 40
"""Steps with one best word."""
NOISE = 0.1
KEEP_STEPS = 20
"""Steps whose samples, and whose records of tokens, are kept."""
TIDY_EVERY = 10
"""Steps between two evaluations; checkpoints but the newest and the best are then deleted."""
OPTIONS = {
    "engine": {"options": {"threads": 1}},
    "trainer": {"options": {"threads": 1}},
    "control": {"keep_samples_steps": KEEP_STEPS, "token_steps": KEEP_STEPS},
    # What is bounded by a limit is full after some dozens of steps: what grows afterwards grows for ever.
    "limits": {"remembered_tokens": 300_000},
}


class LostGameError(Exception):
    """What one rollout of each step ends with."""


async def roll_out(model: art.TrainableModel, step: int, group: int, number: int) -> art.Trajectory:
    scenario = yes_no_maybe.scenario(step, group)
    draw = random.Random(f"{step}/{group}/{number}")
    wanted = [*yes_no_maybe.REWARDS][step // STRETCH % len(yes_no_maybe.REWARDS)]
    right = 0
    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": scenario.prompt}],
        reward=0.0,
        metadata={"scenario": scenario.prompt},
    )
    for turn in range(TURNS):
        if turn:
            trajectory.messages_and_choices.append({"role": "user", "content": "answer"})
        completion = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(),
            messages=trajectory.messages(),
            max_tokens=4,
            seed=draw.randrange(2**31),
        )
        trajectory.messages_and_choices.append(completion.choices[0])
        right += yes_no_maybe.judge(completion.choices[0].message.content or "") == wanted
    trajectory.reward = right + draw.uniform(-NOISE, NOISE)
    if (group, number) == (0, 0):
        raise LostGameError(f"the first rollout of step {step}")
    return trajectory


async def gather(model: art.TrainableModel, step: int) -> list[art.TrajectoryGroup]:
    return await art.gather_trajectory_groups(
        (
            art.TrajectoryGroup(roll_out(model, step, group, number) for number in range(SIZE))
            for group in range(GROUPS)
        ),
        pbar_desc=None,
        max_exceptions=GROUPS * SIZE,
    )


async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(
        name=NAME, project=PROJECT, base_model="art/nano-games", base_path=options.path, report_metrics=[]
    )
    limits = SupervisorLimits(start_s=600)  # other programs may keep the machine busy
    async with art.LocalBackend(
        path=options.path, server_options=OPTIONS, supervisor_limits=limits
    ) as backend:
        await model.register(backend)
        for step in range(await model.get_step(), options.steps):
            begin = time.monotonic()
            groups = await gather(model, step)
            await model.train(groups, config=art.TrainConfig(learning_rate=1e-4))
            seconds = time.monotonic() - begin
            if (step + 1) % TIDY_EVERY == 0:
                await model.log(await gather(model, step), split="val")
                await model.delete_checkpoints()
            print(json.dumps({"step": step + 1, "seconds": seconds}), flush=True)
            if not await asyncio.to_thread(sys.stdin.readline):
                return


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", required=True)
    parser.add_argument("--steps", type=int, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main(read_options()))
