"""Who gets the credit: twelve estimators and two baselines on three tasks, five seeds each, with the same
rollouts.

    python -m bench.learning.estimators [--task NAME] [--method NAME] [--seeds 5] [--tables]
    python -m bench.learning.estimators --fresh
    python -m bench.learning.estimators --times [--task NAME] [--method NAME]

    single   one turn; the reply has to be the word that the question names second
    ten      ten such turns; each right reply earns 0.1
    twenty   twenty turns, of which one decides: the reward is 1 if the eleventh reply is "maybe"

Every method gets the same number of rollouts of `art/nano-games`, in steps of four groups of eight, and the
learning rate of three that earns most in a run of a seed of its own. The two baselines: `best_of_n`
fine-tunes on the best rollout of each group; `prompting` trains nothing, spends the rollouts on choosing the
best of eight prompts, and is scored with that prompt on fresh rollouts. A cell is appended to
bench/records/estimators.jsonl as it ends; cells that are there are not made again. Then the tables are
written into docs/reference/algorithms.md.

`--fresh` runs on `twenty`, with ten seeds that chose nothing, `turn_gae` with `lam` 0.5 and `grpo` with as
many updates. What it answers is the ratio of their mean steps to a reward of 0.9. Such a run ends with the
step that reaches it. `--times` runs each method once more on each task, for the processor time alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import permutations
from pathlib import Path
from statistics import fmean, variance
from types import MappingProxyType
from typing import Any

import art
from art.runs.comparison import t_975
from art.wire.algorithm import OF_TURNS
from bench.learning.cell_runner import provenance
from bench.learning.cells import estimate_of
from bench.marked_pages import replace_between_marks, said
from bench.real.program import cpu_seconds

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "bench" / "records" / "estimators.jsonl"
PAGE = ROOT / "docs" / "reference" / "algorithms.md"
FOUR_UPDATES: Mapping[str, Any] = MappingProxyType({"updates": {"minibatches": 4}, "ratio_to": "trainer"})
"""What the algorithms with a critic have; the control shows what it does alone."""
ESTIMATORS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        **{
            name: {"name": name}
            for name in ("grpo", "rloo", "turn_rloo", "state_rloo", "gigpo", "mt_grpo", "turn_tree")
        },
        "grpo, 4 minibatches": {"name": "grpo", **FOUR_UPDATES},
        **{name: {"name": name} for name in ("ppo_critic", "ppo_value", "turn_gae")},
        "turn_gae, lam 0.5": {"name": "turn_gae", "advantage": {"lam": 0.5}},
    }
)
BEST_OF_N, PROMPTING = "best_of_n", "prompting"
METHODS = (*ESTIMATORS, BEST_OF_N, PROMPTING)
GROUPS, SIZE, SCORE = 4, 8, 0.9
RATES = (1e-3, 3e-3, 1e-2)
TUNING_SEED = 100
"""The seed that chooses the rate of a method on a task. It is none of those that are compared."""
COMPARED = range(5)
"""The seeds that are compared."""
FRESH = range(5, 15)
"""The seeds of the question whether a value model halves the steps: none of them chose `lam` or a rate."""
HALVED = ("twenty", "turn_gae, lam 0.5", "grpo, 4 minibatches")
"""The task of that question, and the two methods."""
MOST_SECONDS = 90.0
"""Of processor time, that a run may take."""
TIMING_SEED = 101
"""The seed of the runs whose processor time is of interest alone. They are not compared."""
LAST = 3
"""Steps at the end whose mean reward is the score of a run."""
DECISIVE = 10
WORDS = ("yes", "no", "maybe")
QUESTIONS = [
    (f"{verb} with {first}, {second} or {third}", second)
    for verb in ("respond", "just respond", "answer")
    for first, second, third in permutations(WORDS)
]
"""What is asked, and the word that it names second."""
PROMPTS = (
    "{}",
    "{}. respond with the second",
    "respond with the second: {}",
    "{}. answer with the second word",
    "respond with maybe",
    "{}. respond with maybe",
    "respond with maybe, maybe or maybe",
    "maybe",
)
"""Ways to ask, for the baseline that trains nothing. None of them depends on the question's answer."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """How many turns, how many steps a run gets, and whether one turn decides alone."""

    turns: int
    steps: int
    decisive: int | None = None

    def question(self, scenario: int, turn: int) -> tuple[str, str]:
        """Returns what is asked at a turn, and the word that earns there."""
        asked, second = QUESTIONS[(scenario + 7 * turn) % len(QUESTIONS)]
        return asked, second if self.decisive is None else "maybe"

    def earned(self, turn: int, reply: str, wanted: str) -> float:
        if self.decisive is None:
            return (reply == wanted) / self.turns
        return float(turn == self.decisive and reply == wanted)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run. `rate` is 0 for what is not trained."""

    task: str
    method: str
    rate: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class Record:
    """A line of the record file."""

    cell: Cell
    machine: str
    curve: Sequence[float]
    """The mean reward of each step's rollouts."""
    when: str | None = None
    """The day. None for this and the next three: of the first runs these are not known."""
    revision: str | None = None
    seconds: float | None = None
    """Of wall time, from the registration of the model to the last step."""
    cpu_seconds: float | None = None
    """Of processor time in that time, by all processes of the run."""

    def to_line(self) -> str:
        read = asdict(self)
        return json.dumps(
            {**read.pop("cell"), **{name: one for name, one in read.items() if one is not None}}
        )

    @classmethod
    def from_line(cls, line: str) -> Record:
        read = json.loads(line)
        cell = Cell(**{name: read.pop(name) for name in Cell.__dataclass_fields__})
        return cls(cell=cell, **read)


TASKS = {
    "single": Task(turns=1, steps=30),
    "ten": Task(turns=10, steps=40),
    "twenty": Task(turns=20, steps=40, decisive=DECISIVE),
}


async def play(
    model: art.TrainableModel, task: Task, scenario: int, *, by_turn: bool = False, prompt: str = PROMPTS[0]
) -> art.Trajectory:
    trajectory, whole = art.Trajectory(messages_and_choices=[], reward=0.0), 0.0
    client = model.openai_client()
    for turn in range(task.turns):
        asked, wanted = task.question(scenario, turn)
        content = prompt.format(asked)
        trajectory.messages_and_choices.append({"role": "user", "content": content})
        completion = await client.chat.completions.create(
            model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=4
        )
        choice = completion.choices[0]
        trajectory.messages_and_choices.append(choice)
        earned = task.earned(turn, (choice.message.content or "").strip(), wanted)
        if by_turn:
            trajectory.reward_turn(choice, earned, state=str(turn))
        else:
            trajectory.reward = whole = whole + earned
    return trajectory


async def play_groups(
    model: art.TrainableModel, task: Task, scenarios: Sequence[int], **how: Any
) -> list[art.TrajectoryGroup]:
    return await art.gather_trajectory_groups(
        (art.TrajectoryGroup(play(model, task, one, **how) for _ in range(SIZE)) for one in scenarios),
        pbar_desc=None,
    )


def mean_reward(groups: Sequence[art.TrajectoryGroup]) -> float:
    return fmean(float(one.reward) for group in groups for one in group)  # type: ignore[arg-type]


async def learn(
    model: art.TrainableModel,
    backend: art.LocalBackend,
    task: Task,
    method: str,
    rate: float,
    enough: float = math.inf,
) -> list[float]:
    """The mean reward of the rollouts of each step, before the step's update. It ends with a step whose
    rollouts earn `enough`.
    """
    curve = []
    for step in range(task.steps):
        scenarios = [step * GROUPS + place for place in range(GROUPS)]
        groups = await play_groups(
            model, task, scenarios, by_turn=ESTIMATORS.get(method, {}).get("name") in OF_TURNS
        )
        curve.append(mean_reward(groups))
        if curve[-1] >= enough:
            break
        if method in ESTIMATORS:
            await backend.train(model, groups, algorithm=dict(ESTIMATORS[method]), learning_rate=rate)
        elif winners := best_of_each(groups):
            await model.train_sft(winners, art.TrainSFTConfig(learning_rate=rate, batch_size=GROUPS))
    return curve


def best_of_each(groups: Sequence[art.TrajectoryGroup]) -> list[art.Trajectory]:
    """Returns the best rollout of each group that has a best one."""
    best = [max(group, key=lambda one: float(one.reward)) for group in groups]  # type: ignore[arg-type]
    return [
        one
        for one, group in zip(best, groups, strict=True)
        if any(other.reward < one.reward for other in group)  # type: ignore[operator]
    ]


async def choose_prompt(model: art.TrainableModel, task: Task, seed: int) -> list[float]:
    """Spends the rollouts of the other methods on the prompts in turn, and scores the best on fresh ones."""
    drawn = random.Random(seed)
    rewards: dict[str, list[float]] = {prompt: [] for prompt in PROMPTS}
    for step in range(task.steps - LAST):
        prompt = PROMPTS[step % len(PROMPTS)]
        scenarios = [drawn.randrange(len(QUESTIONS)) for _ in range(GROUPS)]
        rewards[prompt].append(mean_reward(await play_groups(model, task, scenarios, prompt=prompt)))
    best = max(PROMPTS, key=lambda one: fmean(rewards[one] or [0.0]))
    score = [
        mean_reward(
            await play_groups(
                model, task, [drawn.randrange(len(QUESTIONS)) for _ in range(GROUPS)], prompt=best
            )
        )
        for _ in range(LAST)
    ]
    return [*(value for one in rewards.values() for value in one), *score]


async def run_cell(backend: art.LocalBackend, cell: Cell) -> list[float]:
    model = art.TrainableModel(
        name=f"{cell.task}-{cell.method.replace(', ', '-').replace(' ', '-')}-{cell.rate}-{cell.seed}",
        project="estimators",
        base_model="art/nano-games",
        _internal_config={"peft_args": {"random_state": cell.seed}},
    )
    await model.register(backend)
    task = TASKS[cell.task]
    if cell.method == PROMPTING:
        return await choose_prompt(model, task, cell.seed)
    enough = SCORE if cell.seed in FRESH else math.inf
    return await learn(model, backend, task, cell.method, cell.rate, enough)


async def run_cells(cells: Sequence[Cell]) -> None:
    """Runs the cells that have no record, one after the other on one server."""
    known = {one.cell for one in read_records()}
    if not (missing := [one for one in cells if one not in known]):
        return
    with tempfile.TemporaryDirectory(prefix="art-estimators-") as folder:
        async with art.LocalBackend(path=folder) as backend:
            for cell in missing:
                begin, spent = time.monotonic(), cpu_seconds()
                curve = [round(value, 4) for value in await run_cell(backend, cell)]
                record = Record(
                    cell=cell,
                    curve=curve,
                    **provenance(),
                    seconds=round(time.monotonic() - begin, 1),
                    cpu_seconds=round(cpu_seconds() - spent, 1),
                )
                with RECORDS.open("a", encoding="utf-8") as file:
                    file.write(f"{record.to_line()}\n")
                sys.stderr.write(
                    f"{cell}, {record.seconds} s, {record.cpu_seconds} of them computing: {curve}\n"
                )


def read_records() -> list[Record]:
    lines = RECORDS.read_text(encoding="utf-8").splitlines() if RECORDS.exists() else []
    return [Record.from_line(line) for line in lines]


def best_rate(task: str, method: str, records: Sequence[Record]) -> float:
    """Returns the rate with the highest mean reward over all steps of the tuning seed."""
    tuned = {
        one.cell.rate: fmean(one.curve)
        for one in records
        if one.cell == Cell(task=task, method=method, rate=one.cell.rate, seed=TUNING_SEED)
    }
    return max(tuned, key=tuned.__getitem__)


def steps_to(curve: Sequence[float], score: float) -> int:
    """Returns the number of the first step whose rollouts earn so much on average; past the end, if none."""
    return next((step for step, reward in enumerate(curve, 1) if reward >= score), len(curve) + 1)


def table_of(records: Sequence[Record]) -> str:
    """Returns the table: means over the seeds with their 95 % interval, the best of a task first."""
    lines = [
        f"| task | method | rate | seeds | reward, last {LAST} steps | all steps | steps to {SCORE} |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in TASKS:
        rows = []
        for method in METHODS:
            compared = [
                one
                for one in records
                if (one.cell.task, one.cell.method) == (name, method) and one.cell.seed in COMPARED
            ]
            if compared:
                rows.append(row_of(compared))
        lines += [line for _, line in sorted(rows, key=lambda row: -row[0])]
    return "\n".join(lines)


def row_of(records: Sequence[Record]) -> tuple[float, str]:
    """Returns the mean reward of all steps (of the last ones for what is not trained), and the row."""
    cell, curves = records[0].cell, [one.curve for one in records]
    last = estimate_of([fmean(curve[-LAST:]) for curve in curves])
    told = [cell.task, f"`{cell.method}`" if cell.method in ESTIMATORS else cell.method.replace("_", " ")]
    if cell.method == PROMPTING:
        return last.mean, f"| {' | '.join([*told, '', str(len(curves)), said(last), '', ''])} |"
    whole = estimate_of([fmean(curve) for curve in curves])
    steps = [steps_to(curve, SCORE) for curve in curves]
    never = sum(took > TASKS[cell.task].steps for took in steps)
    took = said_steps(steps) if not never else f"never in {never} of {len(steps)}"
    told += [f"{cell.rate:g}", str(len(curves)), said(last), said(whole), took]
    return whole.mean, f"| {' | '.join(told)} |"


def said_steps(steps: Sequence[int]) -> str:
    """The mean and its 95 % interval."""
    found = estimate_of(steps)
    interval = "" if found.low is None else f" ({found.low:.1f} to {found.high:.1f})"
    return f"{found.mean:.1f}{interval}"


def ratio_of_means(above: Sequence[float], below: Sequence[float]) -> tuple[float, float, float]:
    """Returns the ratio of two means and its 95 % interval by Fieller's theorem, for independent samples,
    with Student's t of the smaller one. The interval is 0 to infinity where the lower mean may be 0.

    >>> [round(one, 3) for one in ratio_of_means([4, 5, 6], [9, 10, 11])]
    [0.5, 0.244, 0.822]
    """
    t = t_975(min(len(above), len(below)) - 1)
    mean, other = fmean(above), fmean(below)
    spread, others = (t * t * variance(one) / len(one) for one in (above, below))
    # (mean - ratio x other)^2 <= spread + ratio^2 x others, a parabola in the ratio
    leading, constant = other * other - others, mean * mean - spread
    if leading <= 0:
        return mean / other, 0.0, math.inf
    middle, root = mean * other, math.sqrt((mean * other) ** 2 - leading * constant)
    return mean / other, (middle - root) / leading, (middle + root) / leading


def halved_table_of(records: Sequence[Record]) -> str:
    """Returns the table of the fresh seeds. A run that never reached the score counts as one step more than
    it had.
    """
    task, *methods = HALVED
    lines = [f"| method | seeds | steps to {SCORE}, each seed | mean |", "|---|---|---|---|"]
    reached = []
    for method in methods:
        curves = {
            one.cell.seed: one.curve
            for one in records
            if (one.cell.task, one.cell.method) == (task, method) and one.cell.seed in FRESH
        }
        steps = [steps_to(curves[seed], SCORE) for seed in sorted(curves)]
        each = ", ".join("never" if one > TASKS[task].steps else str(one) for one in steps)
        lines.append(f"| `{method}` | {len(steps)} | {each} | {said_steps(steps) if steps else ''} |")
        reached.append(steps)
    if min(len(steps) for steps in reached) > 1:
        ratio, low, high = ratio_of_means(*reached)
        lines.append(f"| ratio of the means | | | {ratio:.2f} ({low:.2f} to {high:.2f}) |")
    return "\n".join(lines)


def times_of(records: Sequence[Record]) -> str:
    """Returns a list of the processor times that are known of whole runs, and which are too long."""
    known = [one for one in records if one.cpu_seconds is not None]
    lines = [
        f"- `{one.cell.method}` on `{one.cell.task}`: {one.cpu_seconds:.0f} seconds, "
        f"{'over' if one.cpu_seconds > MOST_SECONDS else 'within'} {MOST_SECONDS:.0f}."
        for one in known
        if one.cell.seed == TIMING_SEED and one.cpu_seconds is not None
    ]
    ended = [one.cpu_seconds for one in known if one.cell.seed in FRESH and one.cpu_seconds is not None]
    if ended:
        lines.append(
            f"- The {len(ended)} runs of the fresh seeds, which end early: at most {max(ended):.0f} seconds."
        )
    lines.append(f"- The other {len(records) - len(known)} runs: not known.")
    return "\n".join(lines)


def write_tables() -> None:
    records = read_records()
    replace_between_marks(PAGE, table_of(records) + "\n", name="estimators")
    replace_between_marks(PAGE, halved_table_of(records) + "\n", name="halved steps")
    replace_between_marks(PAGE, times_of(records) + "\n", name="estimator times")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", action="append", choices=TASKS, help="only this task")
    parser.add_argument("--method", action="append", choices=METHODS, help="only this method")
    parser.add_argument("--seeds", type=int, default=len(COMPARED), choices=range(1, len(COMPARED) + 1))
    parser.add_argument("--fresh", action="store_true", help="only the question of the fresh seeds")
    parser.add_argument("--times", action="store_true", help="only the runs for the processor time")
    parser.add_argument("--tables", action="store_true", help="run nothing: write the tables")
    given = parser.parse_args()
    ways = [(task, method) for task in given.task or TASKS for method in given.method or METHODS]
    seeds: Sequence[int] = [TIMING_SEED] if given.times else range(given.seeds)
    if given.fresh:
        ways, seeds = [(HALVED[0], method) for method in HALVED[1:]], FRESH
    if not given.tables:
        asyncio.run(run_cells(tuning_cells(ways)))
        records = read_records()
        rates = {way: 0.0 if way[1] == PROMPTING else best_rate(*way, records) for way in ways}
        asyncio.run(
            run_cells(
                [
                    Cell(task=task, method=method, rate=rates[task, method], seed=seed)
                    for seed in seeds
                    for task, method in ways
                ]
            )
        )
    write_tables()


def tuning_cells(ways: Sequence[tuple[str, str]]) -> list[Cell]:
    """Returns the runs that choose a rate."""
    return [
        Cell(task=task, method=method, rate=rate, seed=TUNING_SEED)
        for task, method in ways
        if method != PROMPTING
        for rate in RATES
    ]


if __name__ == "__main__":
    main()
