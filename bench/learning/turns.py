"""Credit of turns: a task of ten turns of which one decides, learned with one reward for all and with turns.

    python -m bench.learning.turns [--seeds 3] [--steps 16]

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
TURNS, DECISIVE, GROUPS, SIZE, RATE = 10, 3, 4, 8, 1e-3


async def play(model: art.TrainableModel, by_turn: bool) -> art.Trajectory:
    trajectory = art.Trajectory(messages_and_choices=[], reward=0.0)
    client = model.openai_client()
    for turn in range(TURNS):
        question = f"question {turn}: respond with yes, no or maybe"
        trajectory.messages_and_choices.append({"role": "user", "content": question})
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


def table_of(records: Sequence[dict[str, Any]]) -> str:
    """Returns the table: means over the seeds, and the last steps of each seed."""
    lines = [
        "| algorithm | seeds | reward of the first 3 steps | of the last 3 | mean over all steps |",
        "|---|---|---|---|---|",
    ]
    for name in ALGORITHMS:
        curves = [one["curve"] for one in records if one["algorithm"] == name]
        if curves:
            first, last = (
                fmean(fmean(curve[part]) for curve in curves) for part in (slice(3), slice(-3, None))
            )
            each = ", ".join(f"{fmean(curve[-3:]):.2f}" for curve in curves)
            whole = fmean(map(fmean, curves))
            lines.append(f"| `{name}` | {len(curves)} | {first:.2f} | {last:.2f} ({each}) | {whole:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=16)
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
    replace_between_marks(PAGE, table_of(read_records()) + "\n", name="credit of turns")


if __name__ == "__main__":
    main()
