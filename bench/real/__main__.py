"""Speed at real size: sampling, registration, README's program, a GRPO step and its gradient on SmolLM2-135M.

    python -m bench.real [--model FOLDER] [--cells NAME ...]

Rows have beside them what the arithmetic of the model allows on this machine (`bench.real.limits`) or a peer.
A cell is measured once for each revision and kept in `bench/records/real.jsonl`, so that a bench that was
stopped goes on. Nothing else should run on the machine: the loops beside which cells run are the bench's own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from crosscheck import environment

from art.engine.base_models import local_folder
from bench.real.decode import COUNTS, PEERS, SIBLINGS, measure_decode
from bench.real.gradient import gradient_cpu
from bench.real.limits import Limits, measure_limits
from bench.real.program import REQUEST, TOPICS
from bench.real.records import RECORDS, Measured, measured_once
from bench.real.steps import run_program
from bench.rows import Row, write_rows
from bench.trl.steps import ENVIRONMENT

PATH = RECORDS / "real.jsonl"
ROWS_AT_ONCE = 16
"""TRL's batch on a device: the fastest of 4, 8, 16 and 32."""
PROMPT, ANSWER, ROLLOUTS = 98, 32, 64
"""Tokens and rollouts of the GRPO step."""


def trl_step(model: Path, *, steps: int = 2) -> Measured:
    """Seconds of TRL's step with two threads, the last of a few."""
    python = environment.python("trl")
    with tempfile.TemporaryDirectory(prefix="art-real-") as name:
        job = Path(name) / "job.json"
        prompts = [REQUEST.format(topic=topic) for topic in TOPICS]
        told = {"prompts": prompts, "size": 8, "tokens": ANSWER, "steps": steps, "rows_at_once": ROWS_AT_ONCE}
        job.write_text(json.dumps({"model": str(model), "folder": f"{name}/trl", **told}))
        worker = Path(__file__).parent / "trl_worker.py"
        done = subprocess.run(
            [str(python), "-P", str(worker), str(job)],
            env={**os.environ, **ENVIRONMENT, "OMP_NUM_THREADS": "2"},
            capture_output=True,
            text=True,
            timeout=1800.0,
        )
    if done.returncode:
        raise SystemExit(f"TRL failed:\n{done.stderr[-3000:]}")
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    last = rows[1:] or rows
    return {name: statistics.median(row[name] for row in last) for name in ("seconds", "sampling")}


def limit_figures(model: Path) -> Measured:
    return {str(rows): seconds for rows, seconds in measure_limits(model).seconds.items()}


def cells_of(model: Path) -> dict[str, Callable[[], Measured]]:
    """What is measured, by name, in the order in which it is."""
    return {
        "limits": partial(limit_figures, model),
        "decode": partial(measure_decode, model),
        "readme, quiet": partial(run_program, model, "readme", 6),
        "readme, two loops": partial(run_program, model, "readme", 4, loops=2),
        "nothing trained": partial(run_program, model, "empty", 4),
        "grpo": partial(run_program, model, "grpo", 4),
        "trl": partial(trl_step, model),
        "gradient, prompt 40": partial(gradient_cpu, model, groups=4, size=8, prompt=40),
        "gradient, prompt 256": partial(gradient_cpu, model, groups=2, size=8, prompt=256),
    }


def rows_of(found: dict[str, Measured]) -> list[Row]:
    """The table, of the cells that were measured."""
    rows = decode_rows(found)
    quiet, busy = found.get("readme, quiet"), found.get("readme, two loops")
    if quiet:
        rows += [
            at_most("registration", quiet["registered"], 12.0),
            at_most("README's program, 4 x 8 of at most 6 tokens, a step", quiet["seconds"], 3.5),
            Row(name="README's program, memory of all processes", ours=quiet["mb"], unit="MB"),
        ]
    if busy:
        rows.append(at_most("registration beside two loops", busy["registered"], 30.0))
    if quiet and busy:
        share = busy["seconds"] / quiet["seconds"]
        rows.append(at_most("README's program beside two loops, against quiet", share, 2.5, unit="x"))
    if empty := found.get("nothing trained"):
        rows.append(at_most("a job in which nothing was trained", empty["job"], 0.3))
    if grpo := found.get("grpo"):
        rows += grpo_rows(grpo, found)
    for prompt, goal in ((40, 5.0), (256, 3.4)):
        if one := found.get(f"gradient, prompt {prompt}"):
            ratio = one["rows"] / one["tree"]
            name = f"gradient, prompt of {prompt}: CPU of the tree, and of plain rows"
            rows.append(
                Row(name=name, ours=one["tree"], peer=one["rows"], unit="CPU s", ratio=ratio, goal=goal)
            )
    return rows


def decode_rows(found: dict[str, Measured]) -> list[Row]:
    """Tokens a second of sampling: each count beside the peers that it is held against."""
    told = found.get("decode")
    if told is None:
        return []
    rows = []
    for count in COUNTS:
        for side, peer in PEERS.items():
            goal = None
            if side == "loop" and count > SIBLINGS:
                goal = 0.95
            elif side != "loop" and count <= SIBLINGS:
                goal = 1.5
            name, ratio = f"sampling, {count} at once, against {peer}", told[f"ours/{side} {count}"]
            ours, theirs = told[f"ours {count}"], told[f"{side} {count}"]
            rows.append(Row(name=name, ours=ours, peer=theirs, unit="tokens/s", ratio=ratio, goal=goal))
        if count > 1:
            name = f"sampling, {count} at once in groups of {SIBLINGS}, against different prompts"
            shared, ratio = told[f"ours shared {count}"], 1 / told[f"ours/ours shared {count}"]
            rows.append(Row(name=name, ours=shared, peer=told[f"ours {count}"], unit="tokens/s", ratio=ratio))
    return rows


def grpo_rows(grpo: Measured, found: dict[str, Measured]) -> list[Row]:
    """The step beside TRL's, its parts beside their limits."""
    rows = [
        beside_trl("GRPO step, 8 x 8, 98 + 32 tokens, against TRL's", grpo["seconds"], found.get("trl")),
        at_most("GRPO step: share that is neither sampling nor gradient", grpo["apart"], 0.1, unit="of 1"),
        Row(name="GRPO step, memory of all processes", ours=grpo["mb"], unit="MB"),
    ]
    if told := found.get("limits"):
        limits = Limits(seconds={int(rows): seconds for rows, seconds in told.items()})
        sampling = limits.prefill(PROMPT * 8) + limits.decode(64, ANSWER)
        gradient = limits.gradient(int(grpo["forwarded"]))
        rows += [
            against_limit("GRPO step: sampling, against its limit", grpo["sampling"], sampling),
            against_limit("GRPO step: gradient, against its limit", grpo["gradient"], gradient),
        ]
    return rows


def at_most(name: str, ours: float, goal: float, *, unit: str = "s") -> Row:
    return Row(name=name, ours=ours, unit=unit, goal=goal, at_most=True)


def beside_trl(name: str, ours: float, trl: Measured | None) -> Row:
    """The ratio where TRL was measured at the same revision."""
    if trl is None:
        return Row(name=name, ours=ours, unit="s")
    return Row(name=name, ours=ours, peer=trl["seconds"], unit="s", ratio=trl["seconds"] / ours, goal=4.0)


def against_limit(name: str, ours: float, limit: float) -> Row:
    """The ratio is 1 at the limit, and less the farther from it."""
    return Row(name=name, ours=ours, peer=limit, unit="s", ratio=limit / ours)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.real", description=__doc__)
    parser.add_argument("--model", type=Path, help="a folder of SmolLM2-135M-Instruct; default: art/smollm2")
    parser.add_argument("--cells", nargs="+", metavar="NAME", help="default: all")
    chosen = parser.parse_args()
    model = chosen.model or Path(local_folder("art/smollm2"))
    if not (model / "model.safetensors").is_file():
        parser.error(f"{model} holds no model.safetensors: give a folder that transformers has saved")
    cells = cells_of(model)
    if unknown := sorted(set(chosen.cells or ()) - set(cells)):
        parser.error(f"unknown cell {unknown[0]!r}; known: {', '.join(map(repr, cells))}")
    wanted = {name: measure for name, measure in cells.items() if name in (chosen.cells or cells)}
    found = {name: measured_once(PATH, name, measure) for name, measure in wanted.items()}
    write_rows("real", rows_of(found))


if __name__ == "__main__":
    main()
