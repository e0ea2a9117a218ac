"""Environments of other libraries, trained by name on the shipped nano models.

    python -m bench environments                     all of them
    python -m bench.learning.environments letter-counting     one; --steps 3 for a short look

The server runs here. The learner is `environment_learning.py`, a program of the light client, in
.venv-environments (`make .venv-environments/.installed`), where the libraries are. Writes
bench/results/environments.json, with the validation before and after. A run of all also writes
docs/assets/environments.json and .svg, with the score of each step; --draw makes the picture again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import art
from bench.curve_picture import picture
from bench.rows import Row, write_rows

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-environments" / "bin" / "python"
LEARNER = Path(__file__).with_name("environment_learning.py")
ASSETS = ROOT / "docs" / "assets"
CURVES, PICTURE = ASSETS / "environments.json", ASSETS / "environments.svg"
MOST_SECONDS = 3600


@dataclass(frozen=True, kw_only=True)
class EnvironmentJob:
    """What is trained, and how; the learner gets it as JSON."""

    title: str
    """Of its curve."""
    environment: str
    options: Mapping[str, Any] = field(default_factory=dict)
    score: str
    """The metric that is reported: a share between 0 and 1."""
    base_model: str = "art/nano"
    full_finetuning: bool = False
    steps: int
    groups_per_step: int
    group_size: int
    learning_rate: float
    """After two steps of warm-up; it falls to a tenth."""
    max_tokens: int
    evaluations: int = 400
    seed: int = 0


def only(expression: str) -> dict[str, Any]:
    """Arguments of a request whose reply fits a regular expression."""
    return {"extra_body": {"guided_regex": expression}}


JOBS = {
    "letter-counting": EnvironmentJob(
        title="reasoning-gym:letter_counting, answers right",
        environment="reasoning-gym:letter_counting",
        options={
            "min_words": 2,
            "max_words": 4,
            "train": 2000,
            "system_prompt": None,
            "request": only("[0-9]"),
        },
        score="solved",
        full_finetuning=True,  # a LoRA cannot make a digit likely that the base model never says
        steps=20,
        groups_per_step=16,
        group_size=8,
        learning_rate=1e-3,
        max_tokens=2,
    ),
    "tic-tac-toe": EnvironmentJob(
        title="textarena:TicTacToe-v0, games not lost",
        environment="textarena:TicTacToe-v0",
        options={"opponent": "random", "rewrite": "text_worlds:short_board", "request": only("[0-8]")},
        score="not_lost",
        base_model="art/nano-games",
        steps=70,
        groups_per_step=8,
        group_size=16,
        learning_rate=4e-3,
        max_tokens=8,
    ),
    "corners": EnvironmentJob(
        title="gymnasium: Corners, corner reached",
        environment="gymnasium:text_worlds:Corners",
        options={"max_turns": 6, "request": only("up|down|left|right")},
        score="reached",
        steps=80,
        groups_per_step=16,
        group_size=8,
        learning_rate=2e-3,
        max_tokens=8,
    ),
}


async def learn(name: str, job: EnvironmentJob) -> dict[str, Any]:
    """Returns what the learner measured: reward and score of each step, before and after."""
    with tempfile.TemporaryDirectory(prefix="art-environments-") as folder:
        async with art.LocalBackend(path=folder) as backend:
            first = art.TrainableModel(name="address", project="bench", base_model=job.base_model)
            await first.register(backend)
            address = {"base_url": first.inference_base_url, "key": first.inference_api_key}
            path = Path(folder) / "job.json"
            path.write_text(json.dumps({**asdict(job), **address, "folder": f"{folder}/learner"}))
            variables = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{LEARNER.parent}"}
            process = await asyncio.create_subprocess_exec(
                str(PYTHON), "-W", "ignore", str(LEARNER), str(path), env=variables, stdout=subprocess.PIPE
            )  # fmt: skip
            async with asyncio.timeout(MOST_SECONDS):
                told, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the learner of {name} ended with {process.returncode}")
    measured: dict[str, Any] = json.loads(told)
    return measured


def rows_of(name: str, told: Mapping[str, Any]) -> list[Row]:
    """The share after training beside that before, on scenarios that no step trained on."""
    before, after = told["before"]["score"], told["after"]["score"]
    return [
        Row(
            name=f"{name}, validation", ours=after, peer=before, unit="share", ratio=after / max(before, 1e-9)
        )
    ]


def draw(curves: Mapping[str, Any]) -> None:
    """Writes the picture of the page: the score of each step's rollouts."""
    points = {
        JOBS[name].title: [[row["step"], row["score"]] for row in told["steps"]]
        for name, told in curves.items()
    }
    PICTURE.write_text(picture(points), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"one of {', '.join(JOBS)}; default: all")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draw", action="store_true", help="only the picture, from its JSON")
    given = parser.parse_args()
    if given.draw:
        draw(json.loads(CURVES.read_text(encoding="utf-8")))
        return
    if unknown := sorted(set(given.names) - set(JOBS)):
        parser.error(f"unknown environment {unknown[0]!r}; known: {', '.join(JOBS)}")
    if not PYTHON.exists():
        parser.error(f"there is no {PYTHON}: run `make .venv-environments/.installed`")
    curves, rows = {}, []
    for name in given.names or JOBS:
        job = replace(JOBS[name], seed=given.seed, steps=given.steps or JOBS[name].steps)
        curves[name] = asyncio.run(learn(name, job))
        rows += rows_of(name, curves[name])
    write_rows("environments", rows)
    if not given.names and given.steps is None:
        CURVES.write_text(json.dumps(curves) + "\n", encoding="utf-8")
        draw(curves)


if __name__ == "__main__":
    main()
