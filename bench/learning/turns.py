"""Credit of turns: a task of ten turns of which one decides, learned with one reward for all and with turns.

    python -m bench.learning.turns [--seeds 5] [--steps 20]

The model answers ten questions; the reward is 1 if the fourth reply is "maybe", and nothing else counts. Each
algorithm gets the same number of rollouts. A cell is appended to bench/records/turns.jsonl; cells that are
there are not made again. Then the table is printed, and written into docs/reference/algorithms.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from statistics import fmean
from typing import Any

import art
from art.wire.algorithm import OF_TURNS
from bench.marked_pages import replace_between_marks

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "bench" / "records" / "turns.jsonl"
PAGE = ROOT / "docs" / "reference" / "algorithms.md"
ALGORITHMS = ("grpo", "rloo", "turn_rloo", "state_rloo", "gigpo")
TURNS, DECISIVE, GROUPS, SIZE, RATE, SCORE = 10, 3, 4, 8, 1e-3, 0.9
QUESTIONS = [
    f"{verb} with {first}, {second} or {third}"
    for verb in ("respond", "just respond", "answer")
    for first, second, third in permutations(("yes", "no", "maybe"))
]


async def play(model: art.TrainableModel, by_turn: bool) -> art.Trajectory:
    trajectory = art.Trajectory(messages_and_choices=[], reward=0.0)
    client = model.openai_client()
    for turn in range(TURNS):
        trajectory.messages_and_choices.append({"role": "user", "content": QUESTIONS[turn]})
        completion = await client.chat.completions.create(
            model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=4
        )
        choice = completion.choices[0]
        trajectory.messages_and_choices.append(choice)
        earned = float(turn == DECISIVE and (choice.message.content or "").strip() == "maybe")
        if by_turn:
            trajectory.reward_turn(choice, earned, state=str(turn))
        elif earned:
            trajectory.reward = earned
    return trajectory


async def learn(algorithm: str, seed: int, steps: int) -> list[float]:
    """The mean reward of the rollouts of each step."""
    by_turn = algorithm in OF_TURNS
    curve = []
    with tempfile.TemporaryDirectory() as folder:
        model = art.TrainableModel(
            name=f"{algorithm}-{seed}",
            project="turns",
            base_model="art/nano-games",
            _internal_config={"peft_args": {"random_state": seed}},
        )
        async with art.LocalBackend(path=folder) as backend:
            await model.register(backend)
            for _ in range(steps):
                groups = await art.gather_trajectory_groups(
                    (art.TrajectoryGroup(play(model, by_turn) for _ in range(SIZE)) for _ in range(GROUPS)),
                    pbar_desc=None,
                )
                curve.append(fmean(float(one.reward) for group in groups for one in group))  # type: ignore[arg-type]
                await backend.train(model, groups, algorithm=algorithm, learning_rate=RATE)
    return curve


def read_records() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RECORDS.read_text().splitlines()] if RECORDS.exists() else []


def steps_to(curve: Sequence[float], score: float) -> int:
    """Returns the number of the first step whose rollouts earn so much on average; past the end, if none."""
    return next((step for step, reward in enumerate(curve, 1) if reward >= score), len(curve) + 1)


def table_of(records: Sequence[dict[str, Any]]) -> str:
    """Returns the table: each seed, and means over the seeds."""
    lines = [
        f"| algorithm | steps to {SCORE}, each seed | mean | mean reward of all steps |",
        "|---|---|---|---|",
    ]
    for name in ALGORITHMS:
        curves = [one["curve"] for one in records if one["algorithm"] == name]
        if curves:
            steps = [steps_to(curve, SCORE) for curve in curves]
            shown = ", ".join(map(str, steps))
            lines.append(f"| `{name}` | {shown} | {fmean(steps):.1f} | {fmean(map(fmean, curves)):.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    for seed in range(options.seeds):
        for name in ALGORITHMS:
            if any((one["algorithm"], one["seed"]) == (name, seed) for one in read_records()):
                continue
            curve = [round(value, 4) for value in asyncio.run(learn(name, seed, options.steps))]
            with RECORDS.open("a") as file:
                file.write(json.dumps({"algorithm": name, "seed": seed, "curve": curve}) + "\n")
            print(name, seed, curve, flush=True)
    print(table_of(read_records()))
    replace_between_marks(PAGE, table_of(read_records()) + "\n", name="credit-of-turns")


if __name__ == "__main__":
    main()
