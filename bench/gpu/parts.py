"""The parts of a run, in their order, each in a process of its own and under a limit of its own.

    python -m bench.gpu.parts                      all of them, in at most eight minutes
    python -m bench.gpu.parts --only decode flex   some
    python -m bench.gpu.parts --dry --device cpu   tiny shapes, to see that all of it runs

What a part has written before it is cut, or fails, is kept. The seconds that a part leaves go to those after
it: each gets what the later ones do not need, and at most twice its limit.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import IO

from bench.gpu.results import PartEnd, Status, append_line
from bench.gpu.warm import import_all, run_module

TOTAL = 480.0
"""Seconds of a whole run, installation included."""
INSTALL = 30.0
"""Seconds that `run.sh` gives the installation."""
KILL_SECONDS = 3.0
"""Between the signal to stop and the one that kills."""
RESULTS, LOG = "gpu.jsonl", "gpu.log"
Program = subprocess.Popen[bytes] | ForkProcess
GPU_TESTS = (
    *("tests/training/test_flex.py", "tests/training/test_accelerators.py"),
    "tests/extensions/cuda_graphs/test_graphed_decoder.py",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One part. `limit`: seconds that it is sure of."""

    name: str
    limit: float
    module: str = ""
    """Of `bench.gpu`, which opens a `Session`; default: the part's name."""
    arguments: tuple[str, ...] = ()
    command: tuple[str, ...] = field(default=())
    """Another program, which takes no arguments of a session."""

    @property
    def module_name(self) -> str:
        return f"bench.gpu.{self.module or self.name}"

    def arguments_in(self, run: Run, seconds: float) -> list[str]:
        """Returns what the module is told."""
        session = ["--device", run.device, "--results", str(run.results), "--work", str(run.work)]
        session += ["--seconds", f"{seconds:.0f}", "--part", self.name, *(["--dry"] if run.dry else [])]
        return [*session, *self.arguments]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What the parts share."""

    device: str
    dry: bool
    out: Path
    work: Path

    @property
    def results(self) -> Path:
        return self.out / RESULTS


PARTS = (
    Part(name="ceilings", limit=25),
    Part(
        name="tests",
        limit=60,
        command=(
            # The machine's own plugins of pytest are of other versions.
            *("env", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1", sys.executable, "-m", "pytest"),
            *("-p", "pytest_asyncio.plugin", "-p", "pytest_timeout", "-p", "no:cacheprovider"),
            "--show-capture=no",
            *("-m", "gpu", "-q", "-rs", *GPU_TESTS),
        ),
    ),
    Part(name="audit", limit=35, arguments=("art/nano-words",)),
    Part(name="flex", limit=30),
    Part(name="trainer-0.6b", limit=50, module="trainer", arguments=("--shape", "qwen3-0.6b")),
    Part(name="trainer-4b", limit=50, module="trainer", arguments=("--shape", "qwen3-4b")),
    Part(name="tree", limit=25),
    Part(name="decode", limit=50),
    Part(name="agreement", limit=35),
    Part(name="memory", limit=45),
    Part(name="quickstart", limit=45),
)
"""Quick start last: it uses what the others leave."""


_WAITS = "import time; print('waits', flush=True); time.sleep(600)"
PROOFS = (
    Part(name="overruns", limit=6, command=(sys.executable, "-c", _WAITS)),
    Part(name="fails", limit=6, command=(sys.executable, "-c", "raise SystemExit('as it must')")),
)
"""What shows on a machine that limits act, and that a failure stops nothing."""


def run_parts(parts: Sequence[Part], run: Run, *, total: float) -> list[PartEnd]:
    """Runs them in turn within `total` seconds; each one's end is a line of the results."""
    begin = time.monotonic()
    ends = []
    for number, part in enumerate(parts):
        left = total - (time.monotonic() - begin)
        later = sum(other.limit for other in parts[number + 1 :])
        seconds = min(2 * part.limit, max(left - later, min(part.limit, left)))
        end = run_part(part, run, seconds)
        append_line(run.results, "part", asdict(end))
        print(f"== {end.part}: {end.status} after {end.seconds:.0f} s {end.said}".rstrip(), flush=True)
        ends.append(end)
    return ends


def run_part(part: Part, run: Run, seconds: float) -> PartEnd:
    """Runs one part, and ends all of it when its time is up. Its output goes to the log."""
    if seconds < KILL_SECONDS:
        return _ended(part, run, "left out", 0.0, seconds, "no time was left")
    print(f"== {part.name}: {seconds:.0f} s at most", flush=True)
    begin = time.monotonic()
    log = run.out / LOG
    with log.open("ab") as stream:
        stream.write(f"\n== {part.name}\n".encode())
        stream.flush()
        start = stream.tell()
        program = start_part(part, run, seconds, stream)
        try:
            code = wait_for_end(program, seconds - KILL_SECONDS)
        finally:
            _end_group(program)
    status: Status = "cut" if code is None else "failed" if code else "done"
    said = "its time was up" if status == "cut" else last_line(log, start)
    if status == "failed":
        said = f"exit code {code}: {said}"
    return _ended(part, run, status, time.monotonic() - begin, seconds, said)


def start_part(part: Part, run: Run, seconds: float, log: IO[bytes]) -> Program:
    """Starts it in a process group of its own: another program, or a fork of this one with all imports."""
    if part.command:
        return subprocess.Popen(
            part.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    import_all()
    told = (part.module_name, part.arguments_in(run, seconds), run.out / LOG)
    fork = get_context("fork").Process(target=run_module, args=told)
    fork.start()
    return fork


def wait_for_end(program: Program, seconds: float) -> int | None:
    """Returns the exit code; None where it is still running then."""
    if isinstance(program, subprocess.Popen):
        with suppress(subprocess.TimeoutExpired):
            return program.wait(timeout=seconds)
        return None
    program.join(seconds)
    return program.exitcode


def last_line(log: Path, start: int) -> str:
    """Returns the last line that a part wrote to the log, from this byte on."""
    with log.open("rb") as stream:
        stream.seek(max(start, log.stat().st_size - 4096))
        lines = stream.read().decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it wrote nothing"


def _end_group(program: Program) -> None:
    """Ends the program, and whatever it started and left."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(program.pid or 0, sent)
        wait_for_end(program, KILL_SECONDS)


def _ended(part: Part, run: Run, status: Status, seconds: float, limit: float, said: str) -> PartEnd:
    return PartEnd(
        part=part.name,
        status=status,
        seconds=round(seconds, 1),
        limit=round(limit, 1),
        said=said,
        dry=run.dry,
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    names = [part.name for part in PARTS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="PART", help=f"of {', '.join(names)}")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dry", action="store_true", help="tiny shapes")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder of results and log")
    parser.add_argument(
        "--prove-limits", action="store_true", help="first a part that overruns, one that fails"
    )
    parser.add_argument("--total", type=float, default=TOTAL - INSTALL, help="seconds for all parts")
    parser.add_argument(
        "--times", type=float, default=1.0, help="multiplies all limits, for a slower machine"
    )
    asked = parser.parse_args(arguments)
    asked.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="art-gpu-") as work:
        run = Run(device=asked.device, dry=asked.dry, out=asked.out.resolve(), work=Path(work))
        parts = [part for part in PARTS if asked.only is None or part.name in asked.only]
        parts = [replace(part, limit=asked.times * part.limit) for part in parts]
        parts = [*(PROOFS if asked.prove_limits else ()), *parts]
        ends = run_parts(parts, run, total=asked.times * asked.total)
    return 0 if all(end.status == "done" for end in ends) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
