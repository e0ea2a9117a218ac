"""Runs each test file alone, in a process of its own: `make test-each`.

    python tests/each_file.py                     all files; goes on where it stopped
    python tests/each_file.py tests/server        those below a folder
    python tests/each_file.py tests/server -- -m "not slow"    ... with words for pytest

A file that passes beside others can need what they left: an import, a registered model, a started server.
`build/each_file.jsonl` has a row for each file. One that has passed at this commit, with the same words, is
left out the next time. The exit code is 1 if a file fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "build" / "each_file.jsonl"
LIMIT_S = 1500
NOTHING_COLLECTED = 5
"""pytest's exit code where the words leave no test of a file."""


def ask_git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def run_alone(file: str, words: Sequence[str]) -> dict[str, Any]:
    """Returns what a file's row says of its run."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", file, *words]
    began = time.monotonic()
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.terminate()  # pytest ends what its tests started
        output = f"not ended after {LIMIT_S} s\n{process.communicate()[0]}"
    passed = process.returncode in (0, NOTHING_COLLECTED)
    return {
        "file": file,
        "passed": passed,
        "seconds": round(time.monotonic() - began, 1),
        "output": "" if passed else output[-6000:],
    }


def read_passed(run: dict[str, Any]) -> set[str]:
    """Returns the files that have passed in a run."""
    rows = RECORD.read_text(encoding="utf-8").splitlines() if RECORD.exists() else []
    return {row["file"] for row in map(json.loads, rows) if row["passed"] and run.items() <= row.items()}


def main(arguments: list[str]) -> int:
    """Prints a line for each file. Returns the exit code."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    places, words = arguments[:cut] or ["tests"], arguments[cut + 1 :]
    tracked = ask_git("ls-files", "--", *places).splitlines()
    files = [one for one in tracked if Path(one).name.startswith("test_") and one.endswith(".py")]
    if not files:
        print(f"no test file is tracked below {', '.join(places)}", file=sys.stderr)
        return 2
    run = {"commit": ask_git("rev-parse", "--short", "HEAD").strip(), "words": words}
    passed = read_passed(run)
    left = [one for one in files if one not in passed]
    RECORD.parent.mkdir(exist_ok=True)
    failed = 0
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool, RECORD.open("a", encoding="utf-8") as record:
        for number, row in enumerate(pool.map(lambda one: run_alone(one, words), left), 1):
            record.write(json.dumps({**run, **row}) + "\n")
            record.flush()
            failed += not row["passed"]
            ending = "passes" if row["passed"] else f"FAILS\n{row['output']}"
            print(f"{number}/{len(left)} {row['file']} ({row['seconds']} s) {ending}", flush=True)
    print(f"{len(files) - failed} of {len(files)} files pass alone")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
