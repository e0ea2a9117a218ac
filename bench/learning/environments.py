"""Environments of other libraries, trained by name on the shipped nano models and on SmolLM2-135M.

    python -m bench environments                     all of the nano models
    python -m bench.learning.environments letter-counting     one; --steps 3 for a short look
    python -m bench.learning.environments lookup popularity --seed 1 --folder /tmp/runs --seconds 540

The server runs here. The learner is `environment_learning.py`, a program of the light client, in
.venv-environments (`make .venv-environments/.installed`), where the libraries are. Writes
bench/results/environments.json, with the validation before and after. A run of all also writes
docs/assets/environments.json and .svg, with the score of each step; --draw makes the picture again.

A run on SmolLM2 takes minutes and has a line in bench/records/environments.jsonl when it has ended; a run
that has a line is not made again. With --seconds it stops after so long, and the same command with the same
--folder goes on. Its first seed is in the picture, once --draw makes it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import art
from bench.curve_picture import picture
from bench.learning.cell_runner import provenance
from bench.learning.cells import RECORDS
from bench.learning.text_worlds import make_lookup_rows
from bench.learning.word_tasks import COMMAND, write_word_tasks
from bench.rows import Row, write_rows

ROOT = Path(__file__).parents[2]
VENVS = {"bfcl": ".venv-bfcl"}
"""Prefix of an environment's name -> the environment of Python of its learner; else .venv-environments."""
AGENTS = ROOT / ".venv-agents" / "bin" / "python"
LEARNER = Path(__file__).with_name("environment_learning.py")
ASSETS = ROOT / "docs" / "assets"
CURVES, PICTURE = ASSETS / "environments.json", ASSETS / "environments.svg"
RECORD = RECORDS / "environments.jsonl"
MOST_SECONDS, END_S = 3600, 60
REAL = "art/smollm2"


@dataclass(frozen=True, kw_only=True)
class EnvironmentJob:
    """What is trained, and how; the learner gets it as JSON."""

    title: str
    """Of its curve."""
    environment: str
    options: Mapping[str, Any] = field(default_factory=dict)
    rows: int = 0
    """Rows of `make_lookup_rows` in a file, which is the option `data`, or for `harbor:` folders of
    `write_word_tasks`; 0: the environment has its own.
    """
    score: str
    """The metric that is reported, or `reward`: a share between 0 and 1."""
    base_model: str = "art/nano"
    full_finetuning: bool = False
    steps: int
    groups_per_step: int
    group_size: int
    learning_rate: float
    """After two steps of warm-up; it falls to a tenth."""
    max_tokens: int
    evaluations: int = 400
    evaluation_rollouts: int = 1
    """Of each scenario of an evaluation."""
    seed: int = 0


def python_of(job: EnvironmentJob) -> Path:
    """Returns the interpreter that has the library of a job's environment."""
    return ROOT / VENVS.get(job.environment.partition(":")[0], ".venv-environments") / "bin" / "python"


def only(expression: str) -> dict[str, Any]:
    """Arguments of a request whose reply fits a regular expression."""
    return {"extra_body": {"guided_regex": expression}}


NEEDLE_EXAMPLES = [
    [
        "Ana likes chess. Tom hates the rain. Mia adores plums. \n"
        "Who hates the rain? Reply only with a name.",
        "Tom",
    ],
    [
        "Ida regrets the color blue. Max enjoys jazz. Omar craves bread. \n"
        "Who craves bread? Reply only with a name.",
        "Omar",
    ],
]
"""Answered questions before each one, which show the form of a reply."""
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
    "lookup": EnvironmentJob(
        title="skyrl-gym:gsm8k on SmolLM2-135M, answers right",
        environment="skyrl-gym:gsm8k",
        rows=500,
        score="reward",
        base_model=REAL,
        steps=12,
        groups_per_step=4,
        group_size=8,
        learning_rate=5e-4,
        max_tokens=6,
        evaluations=64,
    ),
    "popularity": EnvironmentJob(
        title="inspect: popularity on SmolLM2-135M, answers right",
        environment="inspect:inspect_tasks.py@popularity",
        options={"train": 60, "request": only("Yes|No")},
        score="match",
        base_model=REAL,
        steps=10,
        groups_per_step=6,
        group_size=8,
        learning_rate=5e-4,
        max_tokens=2,
        evaluations=40,
        evaluation_rollouts=2,
    ),
    "needle": EnvironmentJob(
        title="reasoning-gym:needle_haystack on SmolLM2-135M, answers right",
        environment="reasoning-gym:needle_haystack",
        options={
            "min_num_statements": 3,
            "max_num_statements": 3,
            "train": 500,
            "system_prompt": None,
            "examples": NEEDLE_EXAMPLES,
            "request": only("[A-Z][a-zA-Z'-]+"),
        },
        score="solved",
        base_model=REAL,
        steps=10,
        groups_per_step=8,  # fewer may all have the answer in one place, and the place is learned
        group_size=6,
        learning_rate=3e-4,
        max_tokens=8,
        evaluations=64,
    ),
    "tool-calls": EnvironmentJob(
        title="bfcl:simple_python on SmolLM2-135M, calls right",
        environment="bfcl:simple_python",
        options={"request": {"tool_choice": "required"}},
        score="right",
        base_model=REAL,
        steps=12,
        groups_per_step=4,
        group_size=8,
        learning_rate=5e-4,
        max_tokens=64,
        evaluations=48,
    ),
    "coding-agent": EnvironmentJob(
        title="harbor: mini-swe-agent on SmolLM2-135M, files right",
        environment="harbor:",
        options={
            "agent": "mini-swe-agent",
            "max_turns": 1,
            "command_s": 5,
            "request": {"extra_body": {"guided_regex": COMMAND}},
        },
        rows=96,
        score="tests/right",
        base_model=REAL,
        steps=12,
        groups_per_step=4,
        group_size=8,
        learning_rate=5e-4,
        max_tokens=48,
        evaluations=24,
        evaluation_rollouts=2,
    ),
}


async def learn(name: str, job: EnvironmentJob, folder: Path, seconds: float) -> dict[str, Any] | None:
    """Returns what the learner measured: reward and score of each step, before and after. None: `seconds`
    were over, and the same call goes on.
    """
    async with art.LocalBackend(path=str(folder)) as backend:
        first = art.TrainableModel(name="address", project="bench", base_model=job.base_model)
        await first.register(backend)
        address = {"base_url": first.inference_base_url, "key": first.inference_api_key}
        path = folder / "job.json"
        asked = {**asdict(job), **address, "folder": str(folder / "learner")}
        if job.environment == "harbor:":
            agent = {"agent_python": str(AGENTS), "agent_config": str(folder / "prompt.yaml")}
            tasks = await asyncio.to_thread(write_word_tasks, folder, job.rows)
            asked |= {"environment": f"harbor:{tasks}", "options": {**job.options, **agent}}
        elif job.rows:
            data = folder / "rows.jsonl"
            data.write_text("".join(json.dumps(row) + "\n" for row in make_lookup_rows(job.rows)))
            asked["options"] = {**job.options, "data": str(data)}
        path.write_text(json.dumps(asked))
        variables = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{LEARNER.parent}"}
        process = await asyncio.create_subprocess_exec(
            *(str(python_of(job)), "-W", "ignore", str(LEARNER), str(path)),
            env=variables,
            cwd=LEARNER.parent,
            stdout=subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(seconds):
                told, _ = await process.communicate()
        except TimeoutError:
            process.terminate()
            async with asyncio.timeout(END_S):
                await process.wait()
            return None
    if process.returncode:
        raise RuntimeError(f"the learner of {name} ended with {process.returncode}")
    measured: dict[str, Any] = json.loads(told)
    return measured


def read_runs() -> list[dict[str, Any]]:
    """Returns the lines of the record, each with `name`, `job`, `measured`, `when`, `machine`, `revision`."""
    return [json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines()]


def keep_run(name: str, job: EnvironmentJob, measured: Mapping[str, Any]) -> None:
    """Appends a run to the record."""
    line = {
        "name": name,
        "job": asdict(job),
        "measured": measured,
        **provenance(),
    }
    with RECORD.open("a", encoding="utf-8") as record:
        record.write(json.dumps(line) + "\n")


def run(name: str, job: EnvironmentJob, folder: Path | None, seconds: float) -> dict[str, Any] | None:
    """Returns what a run measured, or what the record has of it; None if `seconds` were over before its end.

    folder: of the run, which goes on there; None: a new one.
    """
    asked, is_short = json.loads(json.dumps(asdict(job))), job.steps != JOBS[name].steps
    is_kept = job.base_model == REAL and not is_short
    for known in read_runs() if is_kept else ():
        if known["name"] == name and known["job"] == asked:
            measured: dict[str, Any] = known["measured"]
            return measured
    with tempfile.TemporaryDirectory(prefix="art-environments-") as made:
        place = Path(made) if folder is None else folder.resolve()
        place.mkdir(parents=True, exist_ok=True)
        found = asyncio.run(learn(name, job, place, seconds))
    if is_kept and found is not None:
        keep_run(name, job, found)
    return found


def rows_of(name: str, told: Mapping[str, Any]) -> list[Row]:
    """The share after training beside that before, on scenarios that no step trained on."""
    before, after = told["before"]["score"], told["after"]["score"]
    return [
        Row(
            name=f"{name}, validation", ours=after, peer=before, unit="share", ratio=after / max(before, 1e-9)
        )
    ]


def draw(curves: Mapping[str, Any]) -> None:
    """Writes the figures and the picture of the page: the score of each step's rollouts. curves: those of the
    nano models; the others are in the record.
    """
    recorded = {one["name"]: one["measured"] for one in read_runs() if one["job"]["seed"] == 0}
    found = {**curves, **recorded}
    shown = {name: {**found[name], "base_model": JOBS[name].base_model} for name in JOBS if name in found}
    CURVES.write_text(json.dumps(shown) + "\n", encoding="utf-8")
    points = {
        JOBS[name].title: [[row["step"], row["score"]] for row in told["steps"]]
        for name, told in shown.items()
    }
    PICTURE.write_text(picture(points), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"one of {', '.join(JOBS)}; default: all of the nano models")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="of the runs, which go on there")
    parser.add_argument("--seconds", type=float, default=MOST_SECONDS, help="the most for all runs")
    parser.add_argument("--draw", action="store_true", help="only the picture, from its JSON and the record")
    given = parser.parse_args()
    if given.draw:
        draw(json.loads(CURVES.read_text(encoding="utf-8")))
        return
    if unknown := sorted(set(given.names) - set(JOBS)):
        parser.error(f"unknown environment {unknown[0]!r}; known: {', '.join(JOBS)}")
    names = given.names or [name for name, job in JOBS.items() if job.base_model != REAL]
    for python in sorted({python_of(JOBS[name]) for name in names}):
        if not python.exists():
            parser.error(f"there is no {python}: run `make {python.parents[1].name}/.installed`")
    curves, rows, begin = {}, [], time.monotonic()
    for name in names:
        job = replace(JOBS[name], seed=given.seed, steps=given.steps or JOBS[name].steps)
        place = given.folder and given.folder / f"{name}-{job.seed}"
        if (found := run(name, job, place, given.seconds + begin - time.monotonic())) is None:
            parser.exit(1, f"{name} has not ended: the same command goes on\n")
        curves[name] = found
        rows += rows_of(name, curves[name])
    write_rows("environments", rows)
    if not given.names and given.steps is None:
        draw(curves)


if __name__ == "__main__":
    main()
