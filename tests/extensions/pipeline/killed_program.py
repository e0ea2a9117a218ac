"""A program that is killed: a run over the scenarios 0 ... N-1, on a backend that keeps its jobs in a file.

python killed_program.py FOLDER N [M]: the M-th scenario and those after it never end in this life.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
from pathlib import Path
from typing import Any

from fast_backend import FastBackend, pair, scenarios

import art
from art_extensions.pipeline import PipelineTrainer

NEVER_END = float(sys.argv[3]) if len(sys.argv) > 3 else math.inf


async def rollout(model: Any, scenario: dict[str, Any], config: Any) -> art.TrajectoryGroup:
    if scenario["number"] >= NEVER_END:
        await asyncio.Event().wait()
    await asyncio.sleep(random.random() * 0.02)
    return pair((0.0, 0.0)) if scenario["number"] % 7 == 0 else pair()


async def main(folder: Path, count: int) -> None:
    model: Any = art.TrainableModel(
        name="agent", project="p", base_model="art/nano", base_path=str(folder), report_metrics=[]
    )
    backend: Any = FastBackend(folder / "jobs.json", seconds=0.01)
    trainer = PipelineTrainer(
        model, backend, rollout, scenarios(count), None, min_batch_size=3, eval_every_n_steps=0
    )
    print("ready", flush=True)
    await trainer.train()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
