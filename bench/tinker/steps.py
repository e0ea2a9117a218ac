"""Steps of a program for Tinker: the real SDK against `art tinker`, beside plain torch without a server.

    make bench-tinker
    python -m bench.tinker.steps --base art/nano-words --adapters 1 4 16 64

sampling, training   seconds of a loop: samples of each prompt, then their batch and a step. Ours includes the
                     SDK, both servers, the journal, a checkpoint and the new adapter in the engine
adapters             steps a second of all runs that train at the same time, each with one row of 47 tokens or
                     four; beside it the same with `--turns`, in which they share no pass

Each cell is measured once for each revision and kept in `bench/records/tinker.jsonl`: a bench that was
stopped goes on at the cell that was under way. Without options, the tables of `docs/internals/benchmarks.md`
are written.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

from art.engine.base_models import local_folder
from bench.marked_pages import replace_between_marks
from bench.real.records import RECORDS, Measured, machine, measured_once, revision
from bench.rows import Row, write_rows

ROOT = Path(__file__).parents[2]
PATH, PAGE = RECORDS / "tinker.jsonl", ROOT / "docs" / "internals" / "benchmarks.md"
SDK = ROOT / ".venv-tinker" / "bin" / "python"
RUN_S = 3000
BASE = "art/nano-words"
"""Of the runs that train at the same time."""
SIZES, PAIRS = (1, 4), 3
PARTS = ("sample", "train")
GOAL, GOAL_AT = 2.0, 16
"""The ratio that is aimed at with so many adapters."""
WARM = 1
"""Loops that are not counted."""


@contextmanager
def serving(base: str, data: Path, *options: str) -> Iterator[dict[str, str]]:
    """The variables of a program, as `art tinker` prints them."""
    command = [str(Path(sys.executable).with_name("art")), "tinker", "--base-model", base, "--port", "0"]
    service = subprocess.Popen(
        [*command, "--data-dir", str(data), *options],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert service.stdout is not None
        told = [service.stdout.readline().strip().removeprefix("export ").partition("=") for _ in range(2)]
        yield {name: value for name, _, value in told} | {"TINKER_TELEMETRY": "0"}
    finally:
        service.terminate()
        service.wait(60)


def run_program(variables: dict[str, str], *arguments: object) -> dict[str, Any]:
    done = subprocess.run(
        [str(SDK), "-m", "bench.tinker.sdk_program", *map(str, arguments)],
        env={"PATH": os.environ["PATH"], "HOME": str(Path.home()), **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_S,
    )
    if done.returncode:
        raise RuntimeError(f"the SDK's program ended with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_peer(**asked: object) -> dict[str, list[float]]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.tinker.plain_rows"],
        input=json.dumps(asked) + "\n",
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=True,
    )
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure_steps(base: str, prompts: int, each: int, tokens: int, loops: int) -> Measured:
    """The seconds of a loop's parts, ours and those of plain torch, and the tokens of its batch."""
    with tempfile.TemporaryDirectory(prefix="bench-tinker-") as folder, serving(base, Path(folder)) as told:
        ours = run_program(told, "steps", base, prompts, each, tokens, loops + WARM)
    source, data = local_folder(base), ours["data"]
    theirs = run_peer(
        base=source, prompts=ours["prompts"], each=each, tokens=tokens, data=data, loops=loops + WARM
    )
    counted = ours["loops"][WARM:]
    found = {part: median(one[part] for one in counted) for part in PARTS}
    peer = {f"plain {part}": median(values[WARM:]) for part, values in theirs.items()}
    rows = sum(len(one["ids"]) for one in data)
    return {**found, **peer, "computed": counted[-1]["forwarded_tokens:sum"], "tokens": float(rows)}


class BothServices:
    """A service whose runs share passes and one with `--turns`, started when the first cell needs them."""

    def __init__(self, stack: ExitStack, base: str, loops: int) -> None:
        self._base, self._loops = base, loops

        @cache
        def started(*options: str) -> dict[str, str]:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-tinker-"))
            return stack.enter_context(serving(base, Path(folder), *options))

        self._started = started

    def measure(self, count: int, size: int) -> Measured:
        """The steps a second of so many runs, of both services one after the other."""
        services = {"shared": self._started(), "turns": self._started("--turns")}
        return {
            name: float(run_program(told, "adapters", self._base, count, size, self._loops)["steps_a_second"])
            for name, told in services.items()
        }


def step_row(base: str, found: Measured, part: str) -> Row:
    named = f"training, {found['computed']:.0f} of {found['tokens']:.0f} tokens computed"
    ours, peer = found[part], found[f"plain {part}"]
    name = f"{base}: {'sampling' if part == 'sample' else named}"
    return Row(name=name, ours=ours, peer=peer, unit="s", ratio=peer / ours)


def adapter_row(base: str, count: int, size: int, pairs: list[Measured]) -> Row:
    ours, peer = (median(one[name] for one in pairs) for name in ("shared", "turns"))
    ratio = median(one["shared"] / one["turns"] for one in pairs)
    name = f"{base}: {count} adapters at the same time, {size} rows each"
    goal = GOAL if count == GOAL_AT else None
    return Row(name=name, ours=ours, peer=peer, unit="steps/s", ratio=ratio, goal=goal)


def table(head: str, rows: list[Row]) -> str:
    """The rows as the page has them, and where they were measured."""
    lines = [f"| {head} | ours | peer | unit | ratio |", "|---|---|---|---|---|"]
    for row in rows:
        lines.append(f"| {row.name} | {row.ours:.3g} | {row.peer:.3g} | {row.unit} | {row.ratio:.2f} |")
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    return "\n".join([*lines, "", f"Measured at {revision()}, {day}, {machine()}.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.tinker.steps",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--base", action="append", metavar="NAME", help="a base model; may be repeated")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--each", type=int, default=8, help="samples of a prompt (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=32, help="of a sample at most (default: %(default)s)")
    parser.add_argument("--loops", type=int, default=5)
    parser.add_argument("--adapters", type=int, nargs="*", default=[1, 4, 16, 64])
    parser.add_argument(
        "--page", action="store_true", help="write the tables of docs/internals/benchmarks.md"
    )
    given = parser.parse_args()
    if not SDK.exists():
        parser.error("the SDK's environment is missing: make .venv-tinker/.installed")
    settings = (given.prompts, given.each, given.tokens, given.loops)
    steps, adapters = [], []
    for base in given.base or ["art/nano-words", "art/smollm2"]:
        found = measured_once(PATH, f"steps {base} {settings}", partial(measure_steps, base, *settings))
        steps += [step_row(base, found, part) for part in PARTS]
    with ExitStack() as stack:
        both = BothServices(stack, BASE, given.loops)
        for count, size in itertools.product(given.adapters, SIZES):
            cell, measure = (
                f"adapters {BASE} {count} {size} {given.loops}",
                partial(both.measure, count, size),
            )
            pairs = [measured_once(PATH, f"{cell} pair {number}", measure) for number in range(PAIRS)]
            adapters.append(adapter_row(BASE, count, size, pairs))
    if given == parser.parse_args([]):
        replace_between_marks(PAGE, table("loop", steps), name="tinker-steps")
        replace_between_marks(PAGE, table("runs", adapters), name="tinker-adapters")
    rows = steps + adapters
    write_rows("tinker", rows)


if __name__ == "__main__":
    main()
