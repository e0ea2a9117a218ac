"""MCP-RL without labels, offline: `python -m bench.mcp [--seeds 0] [--base-model FOLDER] [--steps 50]`.

`mcp-weather-*`: `art/nano-mcp` learns the tools of the weather server (a real MCP server, a session of each
rollout's own). RULER gives the rewards; its judge knows the truth and is asked over real HTTP. Held out
are 64 tasks that training never sees; one is done when the right answer was found with the tools.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import art
from art.mcp import GeneratedScenario, rollout
from art.mcp.servers.weather.server import create_server
from art.mcp.servers.weather.tasks import DEFAULTS, SYSTEM_PROMPT, TURN_LIMIT, scenarios
from art.mcp.servers.weather.truth import DONE, quality
from art.rewards import Ruler
from art.testing import LlmServer, TruthfulJudge
from bench.rows import Row, write_rows

SEEDS = (0, 1, 2)
SERVER = create_server()
"""One object, to which every rollout opens a session of its own."""
TASKS_SEED = 100
"""Each run has its own training and held-out tasks; those of `scenarios()` served to choose the settings."""
ATTEMPTS = 8
"""At each held-out task, sampled: 512 in all."""
AT_MOST_BEFORE, AT_LEAST_AFTER, SECONDS = 0.35, 0.85, 900.0


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What a run came to: shares of attempts at held-out tasks that got done, and seconds."""

    before: float
    after: float
    seconds: float
    """Start of the server and both evaluations included."""
    questions: int
    """That the judge was asked."""


async def attempt(model: art.TrainableModel, task: GeneratedScenario) -> art.Trajectory:
    return await rollout(
        model,
        task,
        SERVER,
        max_turns=TURN_LIMIT,
        system_prompt=SYSTEM_PROMPT,
        max_tokens=DEFAULTS.max_tokens,
    )


async def share_done(model: art.TrainableModel, tasks: Sequence[GeneratedScenario]) -> float:
    """Sampled at temperature 1."""
    trajectories = await art.gather_trajectories(
        (attempt(model, task) for task in tasks for _ in range(ATTEMPTS)), pbar_desc=None
    )
    return sum(quality(one.messages()) >= DONE for one in trajectories) / len(trajectories)


async def learn(seed: int, folder: Path, base_model: str, steps: int) -> Learned:
    """Evaluate, train, evaluate."""
    begin = time.perf_counter()
    tasks, dice = scenarios(seed=TASKS_SEED + seed), random.Random(f"bench-mcp/{seed}")
    model = art.TrainableModel(name=f"weather-{seed}", project="mcp", base_model=base_model)
    async with (
        LlmServer(TruthfulJudge(quality)) as judge,
        art.LocalBackend(path=str(folder)) as backend,
    ):
        ruler = Ruler("openai/truth", base_url=judge.base_url, api_key=judge.key, cache=False)
        await model.register(backend)
        before = await share_done(model, list(tasks.test))
        for step in range(steps):
            chosen = dice.sample(list(tasks.train), DEFAULTS.groups)
            groups = await art.gather_trajectory_groups(
                (
                    art.TrajectoryGroup(attempt(model, task) for _ in range(DEFAULTS.group_size))
                    for task in chosen
                ),
                pbar_desc=None,
                after_each=ruler.score_group,
            )
            rate = DEFAULTS.rate_at(step, steps=steps)
            await model.train(groups, config=art.TrainConfig(learning_rate=rate))
        after = await share_done(model, list(tasks.test))
        questions = len(judge.requests)
    return Learned(before=before, after=after, seconds=time.perf_counter() - begin, questions=questions)


def rows_of(seed: int, run: Learned) -> list[Row]:
    name = f"mcp-weather-{seed}"

    def row(what: str, ours: float, peer: float, unit: str, ratio: float, goal: float | None = 1.0) -> Row:
        return Row(name=f"{name}: {what}", ours=ours, peer=peer, unit=unit, ratio=ratio, goal=goal)

    return [
        row("done before", run.before, AT_MOST_BEFORE, "share", AT_MOST_BEFORE / run.before),
        row("done after", run.after, AT_LEAST_AFTER, "share", run.after / AT_LEAST_AFTER),
        row("wall time", run.seconds, SECONDS, "s", SECONDS / run.seconds),
        row("questions to the judge", run.questions, run.questions, "requests", 1.0, None),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.mcp", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--base-model", default=DEFAULTS.base_model)
    parser.add_argument("--steps", type=int, default=DEFAULTS.steps)
    options = parser.parse_args()
    rows: list[Row] = []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory(prefix="art-bench-") as folder:
            rows += rows_of(seed, asyncio.run(learn(seed, Path(folder), options.base_model, options.steps)))
    write_rows("mcp", rows)


if __name__ == "__main__":
    main()
