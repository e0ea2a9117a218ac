"""What the pages of a run and `art explain` cost: seconds of CPU of the processes that a user starts."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

ART = str(Path(sys.executable).with_name("art"))
LIMIT_SECONDS = 600.0
NOTHING_FOUND, SOMETHING_FOUND = 0, 1
"""Exit statuses of `art explain`."""


def measure_views(data_dir: Path, project: str, name: str, *, explain: bool = True) -> dict[str, float]:
    """Returns the seconds by name. The first opening of a page includes what it has to index. explain: the
    model has a history.
    """
    run = f"runs/-/{project}/{name}"
    found: dict[str, float] = {}
    if explain:
        found["art explain"] = command_cpu("explain", f"{project}/{name}", "--data-dir", str(data_dir))
    with pages_process(data_dir) as (http, pages):
        for title, path in (
            ("list of runs", ""),
            ("run page, first time", run),
            ("run page", run),
            ("list of rollouts", f"{run}/rollouts"),
        ):
            before = cpu_of(pages)
            reply = http.get(path)
            reply.raise_for_status()
            found[title] = round(cpu_of(pages) - before, 3)
    return found


def command_cpu(*arguments: str) -> float:
    """Returns the seconds of CPU of an `art` command, imports included. Raises SystemExit where it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([ART, *arguments], capture_output=True, text=True, timeout=LIMIT_SECONDS)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (NOTHING_FOUND, SOMETHING_FOUND):
        raise SystemExit(f"art {' '.join(arguments)} failed: {done.stderr[-2000:]}")
    return round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 3)


def cpu_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def pages_process(data_dir: Path) -> Iterator[tuple[httpx.Client, psutil.Process]]:
    """`art ui` as a user starts it: a client that has opened its address, and the process."""
    child = subprocess.Popen([ART, "ui", str(data_dir)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        address = re.search(r"http://\S+", child.stdout.readline())
        if address is None:
            raise SystemExit("art ui printed no address")
        base, _, token = address[0].partition("?token=")
        with httpx.Client(
            base_url=base, follow_redirects=True, timeout=LIMIT_SECONDS, trust_env=False
        ) as http:
            http.get("", params={"token": token}).raise_for_status()
            yield http, psutil.Process(child.pid)
    finally:
        child.terminate()
        child.wait(LIMIT_SECONDS)
        child.stdout.close()
