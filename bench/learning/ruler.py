"""RULER against the rewards that people write by hand: `python -m bench.learning.ruler [--tasks mail]`.

`ruler-ttt-*`, `ruler-mail-*`: the built-in tasks, learned with RULER from a judge that knows the truth, asked
over real HTTP, beside the same run with the task's own reward. The goal is the same score less three points.
`ruler-chaos`: the mean reward where half of the judge's answers are in trouble, beside its calm self;
`ruler-*-chaos-*`: the same trouble through all of a run.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import art
from art.environments import tasks
from art.rewards import Ruler
from art_extensions.testing import LlmServer, Mischief, TruthfulJudge
from bench.learning.ruler_learning import Learned, learn
from bench.rows import Row, write_rows

TASKS = {"ttt": "tic-tac-toe", "mail": "mail"}
SEEDS = (0, 1, 2)
POINTS = 0.03
"""How far below the hand-written reward a run may end: a share of attempts."""
ATTEMPTS = 2000
"""Of an evaluation: a share of 0.9 is known to 0.7 points."""
GROUPS, SIZE = 400, 8
TROUBLE = Mischief.everything(0.5, slow_seconds=0.1, retry_after=0.05)
TOLERANCE = 0.01


def learned(task: str, seed: int, judge: Mischief | None) -> Learned:
    """One run in a folder of its own; without a judge, with the hand-written reward."""
    with tempfile.TemporaryDirectory(prefix="art-bench-") as folder:
        return asyncio.run(learn(task, seed, Path(folder), judge=judge, attempts=ATTEMPTS))


def learning_rows(short: str, label: int | str, judged: Learned, written: Learned) -> list[Row]:
    """A run with the judge beside the one with the hand-written reward."""
    name = f"ruler-{short}-{label}"
    return [
        score_row(f"{name}: {tasks.find(TASKS[short]).SCORE}", judged.score, written.score),
        plain_row(f"{name}: own reward", judged.reward, written.reward, "mean"),
        Row(
            name=f"{name}: time of the steps",
            ours=judged.seconds,
            peer=written.seconds,
            unit="s",
            ratio=written.seconds / judged.seconds,
        ),
        Row(name=f"{name}: questions to the judge", ours=judged.questions, unit="requests"),
        Row(name=f"{name}: rollouts without a score", ours=judged.unscored, unit="rollouts"),
    ]


def score_row(name: str, ours: float, peer: float) -> Row:
    """A share of attempts that went well, to be at most `POINTS` below the peer's."""
    return Row(name=name, ours=ours, peer=peer, unit="share", ratio=ours / peer, goal=1 - POINTS / peer)


def plain_row(name: str, ours: float, peer: float, unit: str) -> Row:
    """Two figures side by side, without a goal."""
    return Row(name=name, ours=ours, peer=peer, unit=unit, ratio=ours / peer if peer else float(ours == peer))


def mean_rows(name: str, runs: Sequence[tuple[Learned, Learned]]) -> list[Row]:
    means = [sum(run[side].score for run in runs) / len(runs) for side in (0, 1)]
    score = tasks.find(TASKS[name.partition("-")[0]]).SCORE
    return [score_row(f"ruler-{name}-mean: {score}", *means)]


async def judged_groups(mischief: Mischief) -> tuple[float, float, float]:
    """The mean reward, the share of rollouts with a score, groups a second."""

    def worth(messages: list[dict[str, Any]]) -> float:
        return float(messages[-1]["content"])

    dice = random.Random(0)

    def attempt(number: int) -> art.Trajectory:
        texts = [("user", f"task {number}"), ("assistant", f"{dice.random():.4f}")]
        messages: list[Any] = [{"role": role, "content": text} for role, text in texts]
        return art.Trajectory(messages_and_choices=messages, reward=0.0)

    groups = [art.TrajectoryGroup(attempt(number) for _ in range(SIZE)) for number in range(GROUPS)]
    async with LlmServer(TruthfulJudge(worth), mischief=mischief) as server:
        ruler = Ruler(
            "openai/truth",
            base_url=server.base_url,
            api_key=server.key,
            cache=False,
            deadline=1.0,
            attempts=6,
        )
        begin = time.perf_counter()
        judged = await asyncio.gather(*(ruler.score_group(group) for group in groups))
        seconds = time.perf_counter() - begin
    rewards = [one.reward for group in judged for one in group]
    scored = [reward for reward in rewards if not isinstance(reward, art.Unscored)]
    return sum(scored) / len(scored), len(scored) / len(rewards), GROUPS / seconds


def chaos_rows() -> list[Row]:
    chaos, calm = (asyncio.run(judged_groups(mischief)) for mischief in (TROUBLE, Mischief()))
    difference = abs(chaos[0] - calm[0]) / calm[0]
    return [
        Row(
            name="ruler-chaos: mean reward",
            ours=chaos[0],
            peer=calm[0],
            unit="mean",
            ratio=1 - difference,
            goal=1 - TOLERANCE,
        ),
        plain_row("ruler-chaos: rollouts with a score", chaos[1], calm[1], "share"),
        plain_row("ruler-chaos: throughput", chaos[2], calm[2], "groups/s"),
    ]


def task_rows(short: str, seeds: Sequence[int]) -> list[Row]:
    """Each seed with a judge, with one that is often in trouble, with the hand-written reward; their means.

    Two runs of one seed end up to five points apart: what a judge in trouble does is told by the means.
    """
    task, rows, calm, chaos = TASKS[short], [], [], []
    for seed in seeds:
        written = learned(task, seed, None)
        calm.append((learned(task, seed, Mischief()), written))
        chaos.append((learned(task, seed, TROUBLE), written))
        rows += learning_rows(short, seed, *calm[-1])
        rows += learning_rows(short, f"chaos-{seed}", *chaos[-1])
    return rows + mean_rows(short, calm) + mean_rows(f"{short}-chaos", chaos)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.learning.ruler", description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=tuple(TASKS), default=tuple(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    options = parser.parse_args()
    # Late in a run most groups are alike, and each would say so.
    logging.getLogger("art.rewards").setLevel(logging.ERROR)
    rows = chaos_rows()
    for short in options.tasks:
        rows += task_rows(short, options.seeds)
    write_rows("ruler", rows)


if __name__ == "__main__":
    main()
