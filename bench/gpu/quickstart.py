"""`art quickstart` as a user starts it: its seconds and scores on this device.

It is stopped a little before its time is up, and what it has done by then is recorded.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from art.runs.quickstart import QuickstartFolder
from bench.gpu.results import Session

ART = "from art.cli import app; app()"
RESERVE = 10.0
"""Seconds in which a run that is stopped ends in order."""
SHORT = ("--steps", "10", "--eval-rollouts", "64")
"""What the seconds of the part allow; the whole quick start has 50 steps."""
DRY = ("--steps", "2", "--groups-per-step", "2", "--group-size", "2", "--eval-rollouts", "4")


def run_quickstart(session: Session, task: str, folder: Path, seconds: float) -> dict[str, Any] | None:
    """Returns the result that it prints; None when it had to be stopped. Raises SystemExit where it fails."""
    output = folder.with_suffix(".json")
    command = [sys.executable, "-c", ART, "quickstart", task, "--output", str(folder), "--json", str(output)]
    command += DRY if session.dry else SHORT
    program = subprocess.Popen(command, env=placed(session.device))
    try:
        code = program.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        program.send_signal(signal.SIGINT)
        program.wait(timeout=RESERVE)
        show_logs(folder)
        return None
    if code:
        raise SystemExit(f"art quickstart {task} ended with exit code {code}")
    return json.loads(output.read_text(encoding="utf-8"))


def show_logs(folder: Path) -> None:
    """Prints the last lines of every log, to see what took the time."""
    for log in sorted(folder.rglob("*.log")):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
        print(f"-- {log.name}", *lines, sep="\n", flush=True)


def placed(device: str) -> dict[str, str]:
    """Returns the environment in which the quick start computes on this device."""
    return dict(os.environ) | ({} if device.startswith("cuda") else {"CUDA_VISIBLE_DEVICES": ""})


def main(arguments: list[str]) -> None:
    session, others = Session.open("quickstart", arguments)
    task = others[0] if others else "tic-tac-toe"
    folder = session.work / f"quickstart-{task}"
    begin = time.perf_counter()
    result = run_quickstart(session, task, folder, session.seconds - RESERVE - 5)
    seconds = time.perf_counter() - begin
    rewards = [row.reward for row in QuickstartFolder(folder).steps()]
    if result is None:
        done = f"stopped after {len(rewards)} steps, rewards {rewards[:2]} to {rewards[-2:]}"
        session.record(f"{task}: seconds of the quick start", None, "s", note=done)
        return
    before, after = result["before"], result["after"]
    session.record(
        f"{task}: seconds of the quick start",
        seconds,
        "s",
        note=f"{result['steps']} steps; before {before}, after {after}",
    )
    session.record(
        f"{task}: reward of the last three steps",
        sum(rewards[-3:]) / len(rewards[-3:]),
        "",
        peer=sum(rewards[:3]) / len(rewards[:3]),
        peer_name="of the first three",
    )


if __name__ == "__main__":
    main(sys.argv[1:])
