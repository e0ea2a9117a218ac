"""Steps of a program for Tinker: the real SDK against `art tinker`, beside plain torch without a server.

    make bench-tinker
    python -m bench.tinker.steps --base art/nano-words --adapters 1 4 16 64

sampling, training   seconds of a loop: samples of each prompt, then their batch and a step. Ours includes the
                     SDK, both servers, the journal, a checkpoint and the new adapter in the engine
adapters             steps a second of all runs that train at the same time, each with one row of 47 tokens or
                     four; beside it the same with `--turns`, in which they share no pass
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
from pathlib import Path
from statistics import median
from typing import Any

from art.engine.base_models import local_folder
from bench.rows import Row, write_rows

ROOT = Path(__file__).parents[2]
SDK = ROOT / ".venv-tinker" / "bin" / "python"
START_S, RUN_S = 300, 3000
SIZES, PAIRS = (1, 4), 3
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


def step_rows(base: str, prompts: int, each: int, tokens: int, loops: int) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="bench-tinker-") as folder, serving(base, Path(folder)) as told:
        ours = run_program(told, "steps", base, prompts, each, tokens, loops + WARM)
    source, data = local_folder(base), ours["data"]
    theirs = run_peer(
        base=source, prompts=ours["prompts"], each=each, tokens=tokens, data=data, loops=loops + WARM
    )
    counted = ours["loops"][WARM:]
    figures = {name: median(one[name] for one in counted) for name in ("sample", "train")}
    peer = {name: median(values[WARM:]) for name, values in theirs.items()}
    forwarded, rows = counted[-1]["forwarded_tokens:sum"], sum(len(one["ids"]) for one in data)
    named = {"sample": "sampling", "train": f"training, {forwarded:.0f} of {rows} tokens computed"}
    return [
        Row(name=f"{base}: {named[name]}", ours=value, peer=peer[name], unit="s", ratio=peer[name] / value)
        for name, value in figures.items()
    ]


def adapter_rows(base: str, counts: list[int], loops: int) -> list[Row]:
    """Both services run all the time, and are measured in turns."""
    rows = []
    with ExitStack() as stack:

        def started(*options: str) -> dict[str, str]:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-tinker-"))
            return stack.enter_context(serving(base, Path(folder), *options))

        shared, turns = started(), started("--turns")
        for count, size in itertools.product(counts, SIZES):

            def rate(told: dict[str, str], count: int = count, size: int = size) -> float:
                found = run_program(told, "adapters", base, count, size, loops)
                return float(found["steps_a_second"])

            pairs = [(rate(shared), rate(turns)) for _ in range(PAIRS)]
            ours, peer = (median(one) for one in zip(*pairs, strict=True))
            name = f"{base}: {count} adapters at the same time, {size} rows each"
            ratio = median(one / other for one, other in pairs)
            rows.append(Row(name=name, ours=ours, peer=peer, unit="steps/s", ratio=ratio))
    return rows


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
    given = parser.parse_args()
    if not SDK.exists():
        parser.error("the SDK's environment is missing: make .venv-tinker/.installed")
    rows = []
    for base in given.base or ["art/nano-words", "art/smollm2"]:
        rows += step_rows(base, given.prompts, given.each, given.tokens, given.loops)
    rows += adapter_rows("art/nano-words", given.adapters, given.loops)
    write_rows("tinker", rows)


if __name__ == "__main__":
    main()
