"""How long a recipe of tinker-cookbook takes to learn, on a laptop, from the start of `art tinker` on.

    make .venv-cookbook/.installed
    python -m bench.tinker.recipe

The recipe is `prompt_distillation`, unchanged, on a file of conversations that is written here. It needs no
data of the hub and no other service. It has learned once the mean loss of a step, in nats a token, is at most
half of the first step's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from art.engine.base_models import local_folder
from bench.rows import Row, machine, write_rows
from bench.tinker.steps import ROOT, serving

COOKBOOK = ROOT / ".venv-cookbook" / "bin" / "python"
RECIPE = "tinker_cookbook.recipes.prompt_distillation.train"
LOSS = "train_mean_nll"
LEARNED, LIMIT_S, PAUSE_S = 0.5, 300.0, 0.2
BATCH = 4
OPTIONS = {
    "renderer_name": "qwen3_instruct",
    "file_path": "chats.jsonl",
    "batch_size": BATCH,
    "num_epochs": 1,
    "learning_rate": 3e-3,
    "max_length": 128,
    "eval_every": 0,
}
CHAT = [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "I am small."}]


def read_steps(folder: Path) -> list[dict[str, Any]]:
    """The metrics of the steps that are made."""
    file = folder / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [one for one in map(json.loads, lines) if LOSS in one]


def run_recipe(base: str, steps: int, folder: Path) -> list[tuple[float, float]]:
    """The seconds since the start after which each step was there, and its mean loss.

    Raises RuntimeError where the recipe fails.
    """
    (folder / "chats.jsonl").write_text(f"{json.dumps({'messages': CHAT})}\n" * BATCH * steps)
    begin, found = time.monotonic(), list[tuple[float, float]]()
    with serving(base, folder / "data") as variables, (folder / "recipe.log").open("wb") as log:
        options = {
            **OPTIONS,
            "model_name": local_folder(base),
            "log_path": folder / "run",
            "max_steps": steps,
        }
        recipe = subprocess.Popen(
            [str(COOKBOOK), "-m", RECIPE, *(f"{name}={value}" for name, value in options.items())],
            env={"PATH": os.environ["PATH"], "HOME": str(Path.home()), "HF_HUB_OFFLINE": "1", **variables},
            cwd=folder,
            stdout=log,
            stderr=log,
        )
        try:
            while recipe.poll() is None:
                time.sleep(PAUSE_S)
                made = read_steps(folder / "run")
                found += [(time.monotonic() - begin, one[LOSS]) for one in made[len(found) :]]
        finally:
            recipe.kill()
            recipe.wait()
    if recipe.returncode or not found:
        raise RuntimeError((folder / "recipe.log").read_text(errors="replace")[-2000:])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.tinker.recipe",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--base", default="art/nano-words", help="a base model (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=10)
    given = parser.parse_args()
    if not COOKBOOK.exists():
        parser.error("the cookbook's environment is missing: make .venv-cookbook/.installed")
    with tempfile.TemporaryDirectory(prefix="bench-recipe-") as folder:
        found = run_recipe(given.base, given.steps, Path(folder))
    first = found[0][1]
    learned = next((seconds for seconds, loss in found if loss <= LEARNED * first), float("inf"))
    name = f"{given.base}, {machine()}"
    rows = [Row(name=f"{name}: learned", ours=learned, unit="s", goal=LIMIT_S, at_most=True)]
    rows += [
        Row(name=f"{name}: step {number} after {seconds:.0f} s", ours=loss, unit="nats a token")
        for number, (seconds, loss) in enumerate(found)
    ]
    write_rows("tinker_recipe", rows)


if __name__ == "__main__":
    main()
