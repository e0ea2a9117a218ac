"""One example's program on this device: its score on held-out scenarios against the seconds it took.

    python -m bench.gpu.league extract_json --model art/smollm2 --seed 0

The program is started as a user starts it, with `--model`, `--seed` and `--path`, and ends when it is done or
its time is up: what it has evaluated by then counts. Its backend takes a GPU where there is one.
`bench/gpu/league.sh` runs it behind `art audit-model` of the same model.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from art.tracking.trajectory_log import LoggedSteps
from bench.gpu.parts import TOTAL, Part, Run, run_parts
from bench.gpu.quickstart import RESERVE, placed
from bench.gpu.results import Session
from bench.learning.example_programs import EXAMPLES, PLAIN, Example

AUDIT_SECONDS = 60.0
DRY = ("--steps", "1", "--groups", "2", "--group-size", "2")


def find_example(name: str) -> Example:
    """Returns the example of this folder; its metric is the reward where no `example.toml` says another.

    Raises SystemExit where there is none.
    """
    folder = EXAMPLES / name
    if (folder / "example.toml").exists():
        return next(one for one in Example.read(folder) if one.variant == PLAIN)
    if not (folder / f"{name}.py").exists():
        known = ", ".join(
            sorted(path.parent.name for path in EXAMPLES.glob("*/*.py") if "notebook" not in str(path))
        )
        raise SystemExit(f"there is no example {name!r}; known: {known}")
    return Example(
        folder=folder, variant=PLAIN, title=name, learns="", metric="reward", goal=0.0, minutes=0.0
    )


def run_program(
    session: Session, example: Example, path: Path, arguments: Sequence[str], seconds: float
) -> str:
    """Runs the program in this folder; returns how it ended."""
    command = [sys.executable, str(example.program), *example.arguments, *arguments, "--path", str(path)]
    program = subprocess.Popen(command, cwd=path, env=placed(session.device))
    try:
        return f"exit code {program.wait(timeout=seconds)}"
    except subprocess.TimeoutExpired:
        program.send_signal(signal.SIGINT)
        try:
            program.wait(timeout=RESERVE)
        except subprocess.TimeoutExpired:
            program.kill()
        return f"stopped after {seconds:.0f} s"


def record_scores(
    session: Session, example: Example, path: Path, seed: int, begin: float, ended: str
) -> None:
    """Records each evaluation: its score, and when its file was written."""
    scores = example.evaluations(path, seed=seed) if any(path.glob("*/models/*")) else []
    if not scores:
        raise SystemExit(f"{example.name} evaluated nothing: {ended}")
    (folder,) = path.glob("*/models/*")
    log = LoggedSteps(folder / "trajectories")
    for one in scores:
        written = max(file.stat().st_mtime for file in log.files("val", one.step))
        session.record(
            f"{example.name}, seed {seed}, step {one.step}: {example.metric}",
            one.mean,
            "",
            note=f"after {written - begin:.0f} s; +- {one.standard_error:.3f} of {one.rollouts}; {ended}",
        )


def run_league(session: Session, name: str, model: str, seed: int, others: Sequence[str]) -> None:
    example = find_example(name)
    path = session.work / f"league-{name}"
    path.mkdir(parents=True, exist_ok=True)
    begin = time.time()
    arguments = ["--model", model, "--seed", str(seed), *(DRY if session.dry else ()), *others]
    ended = run_program(session, example, path, arguments, session.seconds - RESERVE - 5)
    record_scores(session, example, path, seed, begin, ended)


def read_options(arguments: list[str]) -> tuple[Session, argparse.Namespace, list[str]]:
    """Returns the session, this bench's own options, and those of the program."""
    session, others = Session.open("league", arguments)  # first: the values of its options are no example
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("example")
    parser.add_argument("--model", default="art/smollm2")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--alone", action="store_true", help="without `art audit-model` first")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder of results and log")
    return session, *parser.parse_known_args(others)


def program_part(session: Session, asked: argparse.Namespace, others: Sequence[str]) -> Part:
    """Returns the part that runs the program alone."""
    program = (asked.example, "--alone", "--model", asked.model, "--seed", str(asked.seed), *others)
    return Part(name="league", limit=session.seconds - AUDIT_SECONDS, arguments=program)


def main(arguments: list[str]) -> int:
    session, asked, others = read_options(arguments)
    if asked.alone:
        run_league(session, asked.example, asked.model, asked.seed, others)
        return 0
    asked.out.mkdir(parents=True, exist_ok=True)
    run = Run(device=session.device, dry=session.dry, out=asked.out.resolve(), work=session.work)
    audit = Part(name="audit", limit=AUDIT_SECONDS, arguments=(asked.model,))
    ends = run_parts([audit, program_part(session, asked, others)], run, total=min(session.seconds, TOTAL))
    return 0 if all(end.status == "done" for end in ends) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
