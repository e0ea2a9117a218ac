"""What single options do to a curve: one short task, the same rollouts a step, five seeds each.

    python -m bench.learning.options [--method NAME] [--seeds 5] [--tables]

The task is `single` of bench.learning.estimators: one turn, and the reply has to be the word that the
question names second. A step has four groups of eight rollouts of `art/nano-games`, a run 15 steps, and the
rate is 0.003: that of `grpo` in the comparison of estimators. No rate was chosen by its result. Muon has a
second one, five times as large: its updates are a fifth of AdamW's first ones, which move each weight by the
rate.

A reward is 1 for the right word. With `gdpo` and `grpo, sum of parts` another 1 is earned by any of the three
words, and the curve is still that of the right ones. With `refill`, groups of equal rewards are replaced by
up to twelve more, and the curve is that of the four groups that each step asked for. DPO and KTO learn from
the rewards of the step's rollouts. A reward model learns from pairs of 12 questions, and its curve is the
share of 12 pairs of 6 other questions that it puts into the right order.

A run is appended to bench/records/options.jsonl as it ends; runs that are there are not made again. Then the
table is written into docs/reference/algorithms.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any

import art
from art.rewards import RewardModel
from art_extensions.preferences import (
    LabelledReply,
    pairs_of_groups,
    train_dpo,
    train_kto,
    train_reward_model,
)
from bench.learning.cell_runner import provenance
from bench.learning.cells import estimate_of
from bench.learning.estimators import GROUPS, LAST, QUESTIONS, SCORE, SIZE, WORDS, said_steps, steps_to
from bench.marked_pages import replace_between_marks, said
from bench.real.program import cpu_seconds

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "bench" / "records" / "options.jsonl"
PAGE = ROOT / "docs" / "reference" / "algorithms.md"
STEPS, RATE = 15, 3e-3
REFILLS = 12
TRAINED_QUESTIONS = 12
"""The first ones, of a reward model; the others have another verb."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """How a step is made of its rollouts."""

    train: Mapping[str, Any] | None = None
    """The keywords of `train`; None: preferences."""
    rank: int = 16
    rate: float = RATE
    parts: bool = False
    """Whether a reward is the sum of two."""
    refill: bool = False
    heavy: float = 1.0
    """The weight of groups whose right word is "maybe"."""


def grpo(**parts: Any) -> dict[str, Any]:
    return {"algorithm": {"name": "grpo", **parts}}


WIDE = 64
"""The rank at which the moments of the LoRA's matrices are large enough to be quantized."""
METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "grpo": Method(train=grpo()),
        "entropy 0.01": Method(train=grpo(entropy={"coefficient": 0.01})),
        "entropy, target 0.5": Method(train=grpo(entropy={"target": 0.5, "step": 0.005})),
        "top_entropy 0.2": Method(train=grpo(top_entropy=0.2)),
        "kl 0.05 to the base": Method(train=grpo(kl={"coefficient": 0.05})),
        "kl 0.05, reference every 4": Method(
            train=grpo(kl={"coefficient": 0.05, "reference": "step", "every": 4})
        ),
        "kl 0.05, average 0.3": Method(
            train=grpo(kl={"coefficient": 0.05, "reference": "average", "mixup": 0.3})
        ),
        "refill": Method(train=grpo(), refill=True),
        "weight 4 of `maybe`": Method(train=grpo(), heavy=4.0),
        "grpo, sum of parts": Method(train=grpo(), parts=True),
        "gdpo": Method(
            train={"algorithm": {"name": "gdpo", "reward_parts": {"right": 1.0, "word": 1.0}}}, parts=True
        ),
        "muon": Method(train={**grpo(), "optimizer": "muon"}),
        "muon, rate 0.015": Method(train={**grpo(), "optimizer": "muon"}, rate=5 * RATE),
        "grpo, rank 64": Method(train=grpo(), rank=WIDE),
        "adamw_8bit, rank 64": Method(train={**grpo(), "optimizer": "adamw_8bit"}, rank=WIDE),
        "dpo": Method(),
        "kto": Method(),
        "reward_model": Method(),
    }
)
REWARD_MODEL = "reward_model"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run."""

    method: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class Record:
    """A line of the record file."""

    cell: Cell
    curve: Sequence[float]
    """Of each step before its update: the share of right replies; of a reward model, of pairs in order."""
    maybe: Sequence[float]
    """The share of right replies where "maybe" is right; nothing of a reward model."""
    rollouts: int
    """Of the whole run."""
    machine: str
    when: str
    revision: str
    cpu_seconds: float
    """Of processor time, by all processes of the run, from the registration of the model on."""

    def to_line(self) -> str:
        read = asdict(self)
        return json.dumps({**read.pop("cell"), **read})

    @classmethod
    def from_line(cls, line: str) -> Record:
        read = json.loads(line)
        return cls(cell=Cell(method=read.pop("method"), seed=read.pop("seed")), **read)


@dataclass(kw_only=True)
class Run:
    """A model on its way."""

    cell: Cell
    method: Method
    model: art.TrainableModel[Any, Any]
    backend: art.LocalBackend
    curve: list[float]
    maybe: list[float]
    rollouts: int = 0

    async def play(self, scenario: int) -> art.Trajectory:
        """One rollout: a question, and whether the reply is right."""
        asked, wanted = QUESTIONS[scenario % len(QUESTIONS)]
        trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": asked}])
        completion = await self.model.openai_client().chat.completions.create(
            model=self.model.get_inference_name(), messages=trajectory.messages(), max_tokens=4
        )
        trajectory.messages_and_choices.append(completion.choices[0])
        reply = (completion.choices[0].message.content or "").strip()
        right, word = float(reply == wanted), float(reply in WORDS)
        trajectory.metrics.update(right=right, word=word)
        trajectory.reward = right + word * self.method.parts
        self._right.setdefault(scenario, []).append(right)
        self.rollouts += 1
        return trajectory

    def group(self, scenario: int) -> Any:
        """The rollouts of one question, which begin when they are gathered."""
        heavy = self.method.heavy if QUESTIONS[scenario % len(QUESTIONS)][1] == "maybe" else 1.0
        return art.TrajectoryGroup((self.play(scenario) for _ in range(SIZE)), weight=heavy)

    async def gather(self, step: int) -> list[art.TrajectoryGroup]:
        """The groups that a step is made of. Notes what the rollouts of the first four earned."""
        self._right: dict[int, list[float]] = {}
        first = [step * GROUPS + place for place in range(GROUPS)]
        further = iter(range(10_000 + step * REFILLS, 10_000 + (step + 1) * REFILLS))
        more: dict[str, Any] = {}
        if self.method.refill:
            more = {"refill": lambda: self.group(next(further)), "max_refills": REFILLS}
        groups = await art.gather_trajectory_groups(
            (self.group(one) for one in first), pbar_desc=None, **more
        )
        self.curve.append(fmean(fmean(self._right[one]) for one in first))
        asked = [one for one in first if QUESTIONS[one % len(QUESTIONS)][1] == "maybe"]
        self.maybe.append(fmean(fmean(self._right[one]) for one in asked))
        return groups

    async def learn(self) -> None:
        rate = self.method.rate
        for step in range(STEPS):
            groups = await self.gather(step)
            if self.method.train is not None:
                await self.backend.train(self.model, groups, learning_rate=rate, **self.method.train)
            elif self.cell.method == "dpo":
                await train_dpo(self.model, pairs_of_groups(groups), learning_rate=rate, batch_size=GROUPS)
            else:
                replies = [
                    LabelledReply(trajectory=one, desirable=one.metrics["right"] == 1.0)
                    for group in groups
                    for one in group
                ]
                await train_kto(self.model, replies, learning_rate=rate, batch_size=len(replies))

    async def learn_to_score(self) -> None:
        reward, pairs = RewardModel(self.model), pairs_of(QUESTIONS[:TRAINED_QUESTIONS])
        rows = pairs_of(QUESTIONS[TRAINED_QUESTIONS:])
        for step in range(STEPS):
            group = art.TrajectoryGroup(
                trajectory_of(row, side) for row in rows for side in ("chosen", "rejected")
            )
            scores = [float(one.value) for one in await reward.scores(group)]  # type: ignore[arg-type]
            ordered = [better > worse for better, worse in zip(scores[::2], scores[1::2], strict=True)]
            self.curve.append(fmean(map(float, ordered)))
            await train_reward_model(
                self.model,
                pairs,
                learning_rate=RATE,
                batch_size=8,
                seed=self.cell.seed * STEPS + step,
            )


def pairs_of(questions: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """Each question with the right word and each of the other two."""
    return [
        {"prompt": asked, "chosen": wanted, "rejected": word}
        for asked, wanted in questions
        for word in WORDS
        if word != wanted
    ]


def trajectory_of(row: Mapping[str, str], side: str) -> art.Trajectory:
    conversation = [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row[side]}]
    return art.Trajectory(messages_and_choices=conversation, reward=0.0)  # type: ignore[arg-type]


async def run_cell(backend: art.LocalBackend, cell: Cell) -> Record:
    method = METHODS[cell.method]
    name = "".join(letter if letter.isalnum() else "-" for letter in cell.method)
    model = art.TrainableModel(
        name=f"{name}-{cell.seed}",
        project="options",
        base_model="art/nano-games",
        _internal_config={"peft_args": {"random_state": cell.seed, "r": method.rank}},
    )
    spent = cpu_seconds()
    await model.register(backend)
    run = Run(cell=cell, method=method, model=model, backend=backend, curve=[], maybe=[])
    await (run.learn_to_score() if cell.method == REWARD_MODEL else run.learn())
    return Record(
        cell=cell,
        curve=[round(one, 4) for one in run.curve],
        maybe=[round(one, 4) for one in run.maybe],
        rollouts=run.rollouts,
        **provenance(),
        cpu_seconds=round(cpu_seconds() - spent, 1),
    )


async def run_cells(cells: Sequence[Cell]) -> None:
    """Runs the cells that have no record, one after the other on one server."""
    known = {one.cell for one in read_records()}
    if not (missing := [one for one in cells if one not in known]):
        return
    with tempfile.TemporaryDirectory(prefix="art-options-") as folder:
        async with art.LocalBackend(path=folder) as backend:
            for cell in missing:
                begin = time.monotonic()
                record = await run_cell(backend, cell)
                with RECORDS.open("a", encoding="utf-8") as file:
                    file.write(f"{record.to_line()}\n")
                took = f"{time.monotonic() - begin:.0f} s, {record.cpu_seconds} of them computing"
                sys.stderr.write(f"{cell}, {took}: {record.curve}\n")


def read_records() -> list[Record]:
    lines = RECORDS.read_text(encoding="utf-8").splitlines() if RECORDS.exists() else []
    return [Record.from_line(line) for line in lines]


def table_of(records: Sequence[Record]) -> str:
    """Returns the table: means over the seeds with their 95 % interval, in the order of the methods."""
    lines = [
        f'| | seeds | last {LAST} steps | all {STEPS} steps | of those, "maybe" | steps to {SCORE} '
        "| rollouts | s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for method in METHODS:
        if found := [one for one in records if one.cell.method == method]:
            lines.append(f"| {' | '.join([method, *row_of(found)])} |")
    return "\n".join(lines)


def row_of(records: Sequence[Record]) -> list[str]:
    steps = [steps_to(one.curve, SCORE) for one in records]
    never = sum(took > STEPS for took in steps)
    maybe = [fmean(one.maybe) for one in records if one.maybe]
    rollouts = round(fmean(one.rollouts for one in records))
    return [
        str(len(records)),
        said(estimate_of([fmean(one.curve[-LAST:]) for one in records])),
        said(estimate_of([fmean(one.curve) for one in records])),
        said(estimate_of(maybe)) if maybe else "",
        f"never in {never} of {len(steps)}" if never else said_steps(steps),
        str(rollouts) if rollouts else "",
        f"{max(one.cpu_seconds for one in records):.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", action="append", choices=METHODS, help="only this method")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tables", action="store_true", help="run nothing: write the table")
    given = parser.parse_args()
    cells = [
        Cell(method=method, seed=seed) for seed in range(given.seeds) for method in given.method or METHODS
    ]
    if not given.tables:
        asyncio.run(run_cells(cells))
    replace_between_marks(PAGE, table_of(read_records()) + "\n", name="options")


if __name__ == "__main__":
    main()
