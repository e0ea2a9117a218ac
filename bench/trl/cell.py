"""A cell of TRL: its `GRPOTrainer` in its own environment, with the settings that its documentation
recommends.

LoRA of rank 1 with alpha 32 on all linear layers and 1e-5 are those of "LoRA Without Regret" in TRL's
documentation, eight rollouts a prompt and the rest are the defaults of `GRPOConfig`. What a user sets for
speed on a CPU is set: two threads, float32, no checkpointing, as many rows at once as fit.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import MappingProxyType
from typing import Any

from crosscheck import environment

from art.engine.base_models import local_folder
from bench.learning.cells import Cell, Measured
from bench.learning.example_programs import EXAMPLES, ROOT
from bench.trl.steps import ENVIRONMENT, SCRIPTS

RECOMMENDED = MappingProxyType(
    {
        "learning_rate": 1e-5,
        "num_generations": 8,
        "per_device_train_batch_size": 16,
        "gradient_accumulation_steps": 4,
        "lr_scheduler_type": "constant",
    }
)
LORA = MappingProxyType({"r": 1, "lora_alpha": 32})
EXTRA_SECONDS = 1200.0
"""For evaluations, beyond the seconds of a cell."""


def run_trl(cell: Cell, model: str, folder: Path) -> Measured:
    """Runs the cell. settings: keywords of `GRPOConfig`, and `lora`. Raises SystemExit where TRL fails."""
    from bench.learning.example_tasks import ExampleTask
    from bench.learning.methods import EVALUATIONS, point_of

    task = ExampleTask.find(cell.task)
    made: Any = task.environment()
    world = made.world(made.scenarios("val")[0])
    settings = {**RECOMMENDED, **cell.settings}
    job = {
        "model": local_folder(model),
        "world": type(world).__module__,
        "score": task.score,
        "max_tokens": task.program.MAX_TOKENS,
        "seed": cell.seed,
        "seconds": cell.seconds,
        "evaluate_at": [cell.seconds * part / EVALUATIONS for part in range(1, EVALUATIONS)],
        "held_out": cell.held_out,
        "at_once": 64,
        "threads": os.cpu_count(),
        "lora": settings.pop("lora", dict(LORA)),
        "settings": settings,
        "folder": str(folder / "trl"),
    }
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    places = [str(ROOT), str(ROOT / "src"), str(EXAMPLES / cell.task)]
    done = subprocess.run(
        [str(environment.python("trl")), "-P", str(SCRIPTS / "cell_worker.py"), str(path)],
        env={
            **os.environ,
            **ENVIRONMENT,
            "OMP_NUM_THREADS": str(os.cpu_count()),
            "PYTHONPATH": os.pathsep.join(places),
        },
        capture_output=True,
        text=True,
        timeout=cell.seconds + EXTRA_SECONDS,
    )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise SystemExit(f"{cell.name} failed:\n{done.stderr[-3000:]}")
    told = [json.loads(line) for line in lines]
    points = [
        point_of(one["scores"], seconds=one["seconds"], tokens=one["tokens"], step=one["step"])
        for one in told
    ]
    return Measured(points=points, rewards=told[-1]["rewards"])
