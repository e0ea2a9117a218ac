"""This working tree against an earlier commit: `python -m bench.serving.commits COMMIT`.

Both servers run side by side, and one process asks both, one right after the other, in an order drawn by
lot. Both get the same prompts, seeds and rewards.

request         a chat completion of eight tokens, one at a time
round           64 chat completions at once, then one training step of them
CPU             of the server's process for all requests and rounds

The client is this tree's on both sides: the servers and their workers differ.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from openai.types.chat import ChatCompletionUserMessageParam

import art
from art.client.backends.local_server import ServerProcess
from art.client.backends.remote_backend import RemoteBackend
from bench.rows import Row, write_rows
from bench.serving.overhead import interval
from bench.serving.served import ENGINE, cpu_seconds

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 120.0
ROLLOUTS, SIZE = 64, 8
"""Of a round, and of each of its groups."""
WARM_UP = 50
GOAL = 0.99
Pair = tuple[float, float]
"""Seconds of this tree, and of the earlier one."""


@dataclass(kw_only=True)
class Side:
    """A server of one of the two trees, and its model."""

    model: art.TrainableModel
    server: int
    """The process id of its server."""

    async def answer(self, question: str, seed: int) -> art.Trajectory:
        asked: ChatCompletionUserMessageParam = {"role": "user", "content": question}
        completion = await self.model.openai_client().chat.completions.create(
            model=self.model.get_inference_name(), messages=[asked], max_tokens=8, seed=seed
        )
        return art.Trajectory(messages_and_choices=[asked, completion.choices[0]], reward=float(seed % 3))

    async def request(self, number: int) -> None:
        await self.answer(f"yes, no or maybe? {number % 97}", number)

    async def round(self, number: int) -> None:
        asked = [
            self.answer(f"yes, no or maybe? {number} {place // SIZE}", ROLLOUTS * number + place)
            for place in range(ROLLOUTS)
        ]
        rollouts = await asyncio.gather(*asked)
        await self.model.train(
            [art.TrajectoryGroup(rollouts[first : first + SIZE]) for first in range(0, ROLLOUTS, SIZE)]
        )


def sources(commit: str, folder: Path) -> Path:
    """Write the commit's `src` into the folder, and return it."""
    archive = subprocess.run(
        ["git", "archive", commit, "src"], cwd=ROOT, check=True, capture_output=True, timeout=LIMIT_SECONDS
    )
    folder.mkdir()
    subprocess.run(
        ["tar", "--extract", "--directory", folder], input=archive.stdout, check=True, timeout=LIMIT_SECONDS
    )
    return folder / "src"


@contextlib.contextmanager
def serving(source: Path, folder: Path) -> Iterator[ServerProcess]:
    """A server of these sources."""
    command = ("env", f"PYTHONPATH={source}", sys.executable, "-m", "art.server")
    process = ServerProcess(folder, {"engine": ENGINE, "trainer": ENGINE}, command=command)
    process.ensure_running()
    try:
        yield process
    finally:
        process.stop()


async def compare(
    sides: tuple[Side, Side], ask: Callable[[Side, int], Awaitable[None]], count: int
) -> list[Pair]:
    """Seconds of both sides for each number. The first ones warm up and are left out."""
    draw, found = random.Random(0), list[Pair]()
    for number in range(WARM_UP + count):
        taken = [0.0, 0.0]
        for place in draw.sample((0, 1), k=2):
            begin = time.perf_counter()
            await ask(sides[place], number)
            taken[place] = time.perf_counter() - begin
        found.append((taken[0], taken[1]))
    return found[WARM_UP:]


def rows_of(name: str, pairs: Sequence[Pair]) -> Row:
    """Milliseconds, and the median of the pairs' ratios with its interval."""
    now, before = (1000 * statistics.median(side) for side in zip(*pairs, strict=True))
    ratios = [theirs / ours for ours, theirs in pairs]
    low, high = interval(ratios)
    return Row(name=f"{name} ({low:.3f} to {high:.3f})", ours=now, peer=before, unit="ms",
               ratio=statistics.median(ratios), goal=GOAL)  # fmt: skip


async def measure(
    servers: tuple[ServerProcess, ServerProcess], pairs: int, rounds: int, folder: Path
) -> list[Row]:
    found, backends = list[Side](), list[RemoteBackend]()
    for place, server in enumerate(servers):
        backend = RemoteBackend(base_url=server.url, api_key=server.key)
        model = art.TrainableModel(
            name="player", project="bench", base_model="art/nano-games", base_path=str(folder / f"log{place}")
        )
        await model.register(backend)
        assert server.pid is not None
        found.append(Side(model=model, server=server.pid))
        backends.append(backend)
    sides = (found[0], found[1])
    before = [cpu_seconds(side.server) for side in sides]
    rows = [
        rows_of("request", await compare(sides, Side.request, pairs)),
        rows_of("round of 64 requests and a step", await compare(sides, Side.round, rounds)),
    ]
    now, then = (cpu_seconds(side.server) - at for side, at in zip(sides, before, strict=True))
    rows.append(Row(name="CPU of the server", ours=now, peer=then, unit="s", ratio=then / now, goal=GOAL))
    for backend in backends:
        await backend.close()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.serving.commits", description=__doc__)
    parser.add_argument("commit", help="the earlier commit")
    parser.add_argument("--pairs", type=int, default=6000, help="requests of each side")
    parser.add_argument("--rounds", type=int, default=200, help="training steps of each side")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as running:
        folder = Path(name)
        earlier = sources(asked.commit, folder / "earlier")
        now = running.enter_context(serving(ROOT / "src", folder / "now"))
        then = running.enter_context(serving(earlier, folder / "then"))
        rows = asyncio.run(measure((now, then), asked.pairs, asked.rounds, folder))
    write_rows("commits", rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
