"""What is learned in three seeds: tic-tac-toe, mail (the quick start), yes-no-maybe (the example).

Each run is held against figures that it must reach: a share of fresh rollouts, a mean reward, seconds of wall
time (server start and evaluations included). Then the untrained and the trained adapter meet scenarios that
no step trained on: sampled, greedy, and with eight tries (`bench.learning.held_out`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import art
from art.environments import tasks
from art.environments.tasks.yes_no_maybe import REWARDS, judge, phrasings
from bench.learning.held_out import before_and_after, skill_rows
from bench.rows import Row, write_rows

SEEDS = (0, 1, 2)
TARGETS = {"tic-tac-toe": ("not_lost", 0.88), "mail": ("right", 0.90)}
SECONDS = 240.0
EXAMPLE = Path(__file__).parents[2] / "examples" / "yes_no_maybe" / "yes_no_maybe.py"
MEAN_REWARD = 0.95
EXAMPLE_SECONDS = 120.0
HELD_OUT, HELD_OUT_SEED = 256, 2_000_003
"""Scenarios of a stream that neither training nor the quick start's own evaluation draws from."""
TRAINED_ON = ("respond", "just respond")
"""How the example's questions begin."""


def quickstart(task: str, seed: int, folder: Path) -> dict[str, Any]:
    """The result of one run of `art quickstart`."""
    art_command, result = Path(sys.executable).with_name("art"), folder / f"{task}-{seed}.json"
    output = str(folder / f"{task}-{seed}")
    command = [str(art_command), "quickstart", task, "--seed", str(seed), "--output", output]
    subprocess.run([*command, "--json", str(result)], check=True, stdout=subprocess.DEVNULL)
    return json.loads(result.read_text())


def quickstart_rows(name: str, seed: int, folder: Path) -> list[Row]:
    metric, target = TARGETS[name]
    result = quickstart(name, seed, folder)
    task, at = tasks.find(name), f"{name}, seed {seed}"

    async def rollout(one: art.Model, index: int, temperature: float) -> float:
        trajectory = await task.rollout(one, task.scenario(HELD_OUT_SEED, index), temperature=temperature)
        return float(trajectory.metrics[task.SCORE])

    model = art.TrainableModel(name=name, project="quickstart", base_model=task.DEFAULTS.base_model)
    data = folder / f"{name}-{seed}" / "art"
    return [
        Row(name=f"{at}: {metric} before", ours=result["before"][metric], unit="share"),
        Row(name=f"{at}: {metric} after", ours=result["after"][metric], unit="share", goal=target),
        Row(name=f"{at}: wall time", ours=result["seconds"], unit="s", goal=SECONDS, at_most=True),
        *skill_rows(at, *asyncio.run(before_and_after(model, data, HELD_OUT, rollout))),
    ]


def yes_no_maybe_rows(seed: int, folder: Path) -> list[Row]:
    """One run of the example."""
    data = folder / f"ynm-{seed}"
    options = ["--seed", str(seed), "--path", str(data)]
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *options], check=True, capture_output=True, text=True
    )
    seconds = time.perf_counter() - begin
    questions = [text for text in phrasings() if not text.startswith(TRAINED_ON)]
    best = max(REWARDS, key=lambda word: REWARDS[word])

    async def rollout(one: art.Model, index: int, temperature: float) -> float:
        reply = await one.openai_client().chat.completions.create(
            model=one.get_inference_name(),
            messages=[{"role": "user", "content": questions[index]}],
            max_tokens=8,
            temperature=temperature,
        )
        return float(judge(reply.choices[0].message.content or "") == best)

    name, at = f"yes-no-maybe-{seed}", f"yes-no-maybe, seed {seed}"
    model = art.TrainableModel(name=name, project="yes_no_maybe", base_model="art/nano-games")
    reward = float(done.stdout.split()[-1])
    return [
        Row(name=f"{at}: mean reward of the last step", ours=reward, unit="reward", goal=MEAN_REWARD),
        Row(name=f"{at}: wall time", ours=seconds, unit="s", goal=EXAMPLE_SECONDS, at_most=True),
        *skill_rows(at, *asyncio.run(before_and_after(model, data, len(questions), rollout))),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.learning.quickstarts", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    seeds = parser.parse_args().seeds
    with tempfile.TemporaryDirectory(prefix="art-bench-") as name:
        folder = Path(name)
        rows = [row for task in TARGETS for seed in seeds for row in quickstart_rows(task, seed, folder)]
        rows += [row for seed in seeds for row in yes_no_maybe_rows(seed, folder)]
    write_rows("learning", rows)


if __name__ == "__main__":
    main()
