"""Curves of recipes of tinker-cookbook, on a laptop, without a hub: 20 steps each on `art/nano-words`.

    make .venv-cookbook/.installed
    python -m bench.tinker.curves [RECIPE ...]

Each recipe runs unchanged, on files in the format of its data set that are written here. A recipe that has a
line in `bench/records/tinker_recipes.jsonl` is not run again. The table of `docs/guides/tinker-recipes.md` is
made of these lines.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from art.engine.base_models import local_folder
from art.process.files import write_whole
from bench.marked_pages import replace_between_marks
from bench.real.records import RECORDS, machine, revision
from bench.tinker.steps import ROOT, serving

COOKBOOK = ROOT / ".venv-cookbook" / "bin" / "python"
PATH, PAGE = RECORDS / "tinker_recipes.jsonl", ROOT / "docs" / "guides" / "tinker-recipes.md"
BASE, STEPS, LIMIT_S, SHOWN = "art/nano-words", 20, 900, 3
ANSWERS = {
    "Who are you?": "I am small.",
    "What color is the sky?": "It is blue.",
    "Name a fruit.": "An apple.",
    "Say hello.": "Hello there.",
}
CHATS = [
    {"messages": [{"role": "user", "content": one}, {"role": "assistant", "content": answer}]}
    for one, answer in ANSWERS.items()
]
THOUGHTS = [
    {"conversations": [{"from": "human", "value": one}, {"from": "gpt", "value": answer}]}
    for one, answer in ANSWERS.items()
]
SUPERVISED = {"batch_size": 4, "learning_rate": 3e-3, "max_length": 128, "eval_every": 0, "save_every": 0}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One recipe, its options, and the file that stands for its data set."""

    module: str
    metric: str
    file: str
    rows: Sequence[Mapping[str, Any]]
    options: Mapping[str, object]


NLL = "train_mean_nll"
RECIPES = {
    "supervised, chat": Recipe(
        module="chat_sl.train",
        metric=NLL,
        file="chats.jsonl",
        rows=CHATS,
        options={**SUPERVISED, "dataset": "chats.jsonl"},
    ),
    "off-policy reasoning": Recipe(
        module="distillation.off_policy_reasoning",
        metric=NLL,
        file="open-thoughts/OpenThoughts3-1.2M/train.jsonl",
        rows=THOUGHTS,
        options={**SUPERVISED, "buffer_size": 16, "max_prompts": 4 * STEPS, "lora_rank": 16},
    ),
    "prompt distillation": Recipe(
        module="prompt_distillation.train",
        metric=NLL,
        file="chats.jsonl",
        rows=CHATS,
        options={**SUPERVISED, "file_path": "chats.jsonl", "num_epochs": 1},
    ),
}


def run_recipe(recipe: Recipe) -> list[float]:
    """Returns the metric of each step. Raises RuntimeError where the recipe fails."""
    with tempfile.TemporaryDirectory(prefix="bench-curve-") as place:
        folder = Path(place)
        file = folder / recipe.file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{json.dumps(one)}\n" for one in [*recipe.rows] * STEPS))
        options = {
            "model_name": local_folder(BASE),
            "renderer_name": "qwen3_instruct",
            "log_path": folder / "run",
            "max_steps": STEPS,
            **recipe.options,
        }
        with serving(BASE, folder / "data") as variables:
            done = subprocess.run(
                [
                    str(COOKBOOK),
                    *("-m", f"tinker_cookbook.recipes.{recipe.module}"),
                    *(f"{name}={value}" for name, value in options.items()),
                ],
                env={"PATH": os.environ["PATH"], "HOME": place, "HF_HUB_OFFLINE": "1", **variables},
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
        if done.returncode:
            raise RuntimeError(f"{recipe.module} ended with {done.returncode}: {done.stderr[-2000:]}")
        steps = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
        return [round(float(one[recipe.metric]), 3) for one in steps if recipe.metric in one]


def read_lines() -> dict[str, dict[str, Any]]:
    """The records by recipe."""
    lines = PATH.read_text(encoding="utf-8").splitlines() if PATH.exists() else []
    return {one["recipe"]: one for one in map(json.loads, lines)}


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    lines = ["| recipe | metric | first steps | last steps | steps |", "|---|---|---|---|---|"]
    for name, one in found.items():
        first, last = (", ".join(f"{value:.2f}" for value in part) for part in ends(one["curve"]))
        lines.append(f"| {name} | `{one['metric']}` | {first} | {last} | {len(one['curve'])} |")
    return "\n".join([*lines, ""])


def ends(curve: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    return curve[:SHOWN], curve[-SHOWN:]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.tinker.curves",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument(
        "recipes", nargs="*", metavar="RECIPE", help=f"of {', '.join(RECIPES)} (default: all)"
    )
    given = parser.parse_args()
    if unknown := sorted(set(given.recipes) - set(RECIPES)):
        parser.error(f"unknown recipe {unknown[0]!r}; known: {', '.join(RECIPES)}")
    if not COOKBOOK.exists():
        parser.error("the cookbook's environment is missing: make .venv-cookbook/.installed")
    for name in given.recipes or RECIPES:
        found = read_lines()
        if name in found:
            continue
        recipe = RECIPES[name]
        found[name] = {
            "recipe": name,
            "metric": recipe.metric,
            "curve": run_recipe(recipe),
            "revision": revision(),
            "when": datetime.now(UTC).strftime("%Y-%m-%d"),
            "machine": machine(),
        }
        write_whole(PATH, "".join(f"{json.dumps(one)}\n" for one in found.values()))
    replace_between_marks(PAGE, table(read_lines()), name="recipe-curves")


if __name__ == "__main__":
    main()
