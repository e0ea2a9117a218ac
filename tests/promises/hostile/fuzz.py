"""Tries hostile inputs on every reader for a while: `make fuzz`, `make fuzz SECONDS=60 TARGETS=image,gguf`.

What is found stands in build/fuzz/TARGET, made small: correct the reader, and commit the input to
corpus/TARGET under a name that begins with `bug`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path

import borrowed  # noqa: F401  it says where the others are
import huggingface_hub.constants
from hostile_inputs import inputs, outside, try_input, trying, warm_up
from hypothesis import given, seed
from places import Place
from targets import targets

HERE = Path(__file__).parent
ROOT = HERE.parents[2]

ROUND, DEAR_ROUND = 200, 10
"""Inputs of a target before it is the next one's turn."""
FOUND = Path(os.environ.get("ART_FUZZ_FOUND", ROOT / "build" / "fuzz"))


def try_round(target: str, place: Place, number: int) -> int:
    """Returns how many inputs were tried. Raises what a reader raised; the input, made small, is kept."""
    row, read = outside()[target], partial(targets()[target], place=place)
    tried = [b""]
    warm_up(target, read)

    @seed(number)
    @trying(DEAR_ROUND if row.dear else ROUND)
    @given(inputs(target))
    def try_one(content: bytes) -> None:
        tried.append(content)
        if row.alone:
            keep(target, content, "last")
        try_input(row, read, content)

    try:
        try_one()
    except BaseException:
        path = keep(target, tried[-1], hashlib.sha256(tried[-1]).hexdigest()[:12])
        print(f"{target}, seed {number}: found {path}", flush=True)
        raise
    return len(tried) - 1


def keep(target: str, content: bytes, name: str) -> Path:
    """Returns the file of an input."""
    path = FOUND / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def try_alone(target: str, number: int) -> int:
    """Does a round in a process of its own. Returns how many inputs were tried: 0 where native code ended it.

    Raises RuntimeError for what it found.
    """
    command = [sys.executable, __file__, "--targets", target, "--seed", str(number), "--rounds", "1"]
    done = subprocess.run(
        command, env={**os.environ, INSIDE: "1"}, capture_output=True, text=True, check=False
    )
    if done.returncode in (-signal.SIGABRT, -signal.SIGSEGV):
        print(f"{target}, seed {number}: {signal.Signals(-done.returncode).name}, {FOUND / target / 'last'}")
        return 0
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return ROUND


INSIDE = "ART_FUZZ_INSIDE"
"""A variable: this process is the one of `try_alone`."""


def main() -> int:
    """Returns the exit status: 1 where something was found."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=3600.0)
    options.add_argument("--targets", default="", help="their names, with commas between; all without")
    options.add_argument("--rounds", type=int, default=1 << 30)
    options.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    asked = options.parse_args()
    names = asked.targets.split(",") if asked.targets else list(outside())
    counts, found, end = dict.fromkeys(names, 0), set[str](), time.monotonic() + asked.seconds
    folder, number = Path(tempfile.mkdtemp(prefix="fuzz-")), asked.seed
    huggingface_hub.constants.HF_HUB_OFFLINE = True  # a name that an input makes up is asked for nowhere
    place = Place(folder)
    print(f"seed {asked.seed}, {len(names)} targets, {asked.seconds:g} s", flush=True)
    try:
        while time.monotonic() < end and set(names) - found and number < asked.seed + asked.rounds:
            for name in [one for one in names if one not in found]:  # what is found once is found again
                try:
                    own = outside()[name].alone and INSIDE not in os.environ
                    counts[name] += try_alone(name, number) if own else try_round(name, place, number)
                except KeyboardInterrupt:
                    raise
                except BaseException:  # noqa: BLE001  # a limit that was passed is one, too
                    traceback.print_exc()
                    found.add(name)
                if time.monotonic() >= end:
                    break
            number += 1
    finally:
        place.close()
        shutil.rmtree(folder, ignore_errors=True)
    for name, count in counts.items():
        print(f"{count:8}  {name}{'   found' if name in found else ''}")
    print(f"{sum(counts.values()):8}  inputs, {len(found)} found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
