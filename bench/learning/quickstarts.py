"""What is learned in three seeds: tic-tac-toe, mail (the quick start), yes-no-maybe (the example).

    python -m bench.learning.quickstarts [--seeds 0 1 2] [--tables]

Each run is compared with figures that it must reach: a share of fresh rollouts, a mean reward, seconds of
wall time (server start and evaluations included). Then the untrained and the trained adapter meet scenarios
that no step trained on: sampled, greedy, and with eight tries (`bench.learning.held_out`). A run is appended
to bench/records/quickstarts.jsonl as it ends; runs that are there are not made again. Then the tables are
written into docs/internals/benchmarks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import art
from art.environments import tasks
from art.environments.tasks.yes_no_maybe import REWARDS, judge, phrasings
from bench.learning.cell_runner import provenance
from bench.learning.held_out import Skill, before_and_after, skill_rows
from bench.marked_pages import replace_between_marks
from bench.rows import Row, write_rows

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "bench" / "records" / "quickstarts.jsonl"
PAGE = ROOT / "docs" / "internals" / "benchmarks.md"
SEEDS = (0, 1, 2)
TARGETS = {"tic-tac-toe": ("not_lost", 0.88), "mail": ("right", 0.90)}
SECONDS = 240.0
EXAMPLE = ROOT / "examples" / "yes_no_maybe" / "yes_no_maybe.py"
YES_NO_MAYBE = "yes-no-maybe"
TASKS = (*TARGETS, YES_NO_MAYBE)
MEAN_REWARD = 0.95
EXAMPLE_SECONDS = 120.0
HELD_OUT, HELD_OUT_SEED = 256, 2_000_003
"""Scenarios of a stream that neither training nor the quick start's own evaluation draws from."""
TRAINED_ON = ("respond", "just respond")
"""How the example's questions begin."""


@dataclass(frozen=True, kw_only=True)
class LearnedRun:
    """One run, and what its first and its last adapter can do."""

    task: str
    seed: int
    before: float | None
    """Share of fresh rollouts before the training; None where the program measures none."""
    after: float
    """The same share afterwards, or the mean reward of the last step."""
    seconds: float
    untrained: Skill
    trained: Skill
    when: str
    machine: str
    revision: str

    @property
    def name(self) -> str:
        return f"{self.task}, seed {self.seed}"

    @classmethod
    def from_line(cls, line: str) -> LearnedRun:
        fields = json.loads(line)
        skills = {name: Skill(**fields.pop(name)) for name in ("untrained", "trained")}
        return cls(**fields, **skills)

    def rows(self) -> list[Row]:
        if self.task == YES_NO_MAYBE:
            measured, goal, most = "mean reward of the last step", MEAN_REWARD, EXAMPLE_SECONDS
        else:
            (measured, goal), most = TARGETS[self.task], SECONDS
        shares = {"before": (self.before, None), measured: (self.after, goal)}
        return [
            *(
                Row(name=f"{self.name}: {what}", ours=share, unit="share", goal=least)
                for what, (share, least) in shares.items()
                if share is not None
            ),
            Row(name=f"{self.name}: wall time", ours=self.seconds, unit="s", goal=most, at_most=True),
            *skill_rows(self.name, self.untrained, self.trained),
        ]


def read_runs() -> list[LearnedRun]:
    """Returns the recorded runs in the order of the tables."""
    lines = RECORDS.read_text(encoding="utf-8").splitlines() if RECORDS.exists() else []
    runs = [LearnedRun.from_line(line) for line in lines]
    return sorted(runs, key=lambda run: (TASKS.index(run.task), run.seed))


def quickstart(task: str, seed: int, folder: Path) -> dict[str, Any]:
    """The result of one run of `art quickstart`."""
    art_command, result = Path(sys.executable).with_name("art"), folder / f"{task}-{seed}.json"
    output = str(folder / f"{task}-{seed}")
    command = [str(art_command), "quickstart", task, "--seed", str(seed), "--output", output]
    subprocess.run([*command, "--json", str(result)], check=True, stdout=subprocess.DEVNULL)
    return json.loads(result.read_text())


def run_quickstart(name: str, seed: int, folder: Path) -> LearnedRun:
    """Runs `art quickstart` of a task, then evaluates its first and last adapter."""
    metric, _ = TARGETS[name]
    result = quickstart(name, seed, folder)
    task = tasks.find(name)

    async def rollout(one: art.Model, index: int, temperature: float) -> float:
        trajectory = await task.rollout(one, task.scenario(HELD_OUT_SEED, index), temperature=temperature)
        return float(trajectory.metrics[task.SCORE])

    model = art.TrainableModel(name=name, project="quickstart", base_model=task.DEFAULTS.base_model)
    data = folder / f"{name}-{seed}" / "art"
    shares = {"before": result["before"][metric], "after": result["after"][metric]}
    skills = asyncio.run(before_and_after(model, data, HELD_OUT, rollout))
    return learned_run(name, seed, skills, seconds=result["seconds"], **shares)


def run_yes_no_maybe(seed: int, folder: Path) -> LearnedRun:
    """Runs the example, then evaluates its first and last adapter."""
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

    name = f"yes-no-maybe-{seed}"
    model = art.TrainableModel(name=name, project="yes_no_maybe", base_model="art/nano-games")
    reward = float(done.stdout.split()[-1])
    skills = asyncio.run(before_and_after(model, data, len(questions), rollout))
    return learned_run(YES_NO_MAYBE, seed, skills, before=None, after=reward, seconds=seconds)


def learned_run(
    task: str, seed: int, skills: tuple[Skill, Skill], *, before: float | None, after: float, seconds: float
) -> LearnedRun:
    untrained, trained = skills
    return LearnedRun(
        task=task,
        seed=seed,
        before=before,
        after=after,
        seconds=seconds,
        untrained=untrained,
        trained=trained,
        **provenance(),
    )


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


def table_of_runs(runs: Sequence[LearnedRun]) -> str:
    lines = ["| | before | after | wall time |", "|---|---|---|---|"]
    for run in runs:
        if run.task == YES_NO_MAYBE:
            figures = f" | {run.after:.3f}"
        else:
            missed = "" if run.after >= TARGETS[run.task][1] else " (missed)"
            figures = f"{percent(run.before)} % | {percent(run.after)} %{missed}"
        lines.append(f"| {run.name} | {figures} | {run.seconds:.0f} s |")
    return "\n".join(lines) + "\n"


def table_of_skills(runs: Sequence[LearnedRun]) -> str:
    columns = ["%", "sampled, before", "after", "gain ± its standard error"]
    columns += ["greedy, before", "after", "pass@8, before", "after"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for run in runs:
        old, new = run.untrained, run.trained
        gain = f"{percent(new.sampled - old.sampled)} ± {percent(math.hypot(old.error, new.error))}"
        shares = [old.greedy, new.greedy, old.pass_at_8, new.pass_at_8]
        figures = [percent(old.sampled), percent(new.sampled), gain, *map(percent, shares)]
        lines.append(f"| {' | '.join([run.name, *figures])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.learning.quickstarts",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--tables", action="store_true", help="run nothing: write the page")
    given = parser.parse_args()
    known = {(run.task, run.seed) for run in read_runs()}
    wanted = [(task, seed) for task in TASKS for seed in given.seeds if (task, seed) not in known]
    for task, seed in [] if given.tables else wanted:
        with tempfile.TemporaryDirectory(prefix="art-bench-") as name:
            folder = Path(name)
            run = (
                run_yes_no_maybe(seed, folder) if task == YES_NO_MAYBE else run_quickstart(task, seed, folder)
            )
        with RECORDS.open("a", encoding="utf-8") as records:
            records.write(json.dumps(asdict(run)) + "\n")
    runs = read_runs()
    write_rows("learning", [row for run in runs for row in run.rows()])
    replace_between_marks(PAGE, table_of_runs(runs), name="quickstart-runs")
    replace_between_marks(PAGE, table_of_skills(runs), name="quickstart-held-out")


if __name__ == "__main__":
    main()
