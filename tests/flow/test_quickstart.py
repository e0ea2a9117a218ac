"""`art quickstart` as a user meets it: the real command, the real server, a few tiny steps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ART = str(Path(sys.executable).with_name("art"))
TINY = ["--steps", "2", "--groups", "2", "--group-size", "4", "--evaluation-games", "12"]

pytestmark = pytest.mark.slow


def art(*arguments: str, cwd: Path, timeout: float = 180) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "140"}
    return subprocess.run(
        [ART, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout
    )


def adapter(run: Path, task: str, step: int) -> bytes:
    folder = run / "art" / "quickstart" / "models" / task / "checkpoints" / f"{step:04d}"
    return (folder / "adapter_model.safetensors").read_bytes()


def wait_for_lines(path: Path, lines: int, *, deadline: float) -> None:
    end = time.monotonic() + deadline
    while not path.exists() or path.read_text().count("\n") < lines:
        assert time.monotonic() < end, f"{path} did not reach {lines} lines"
        time.sleep(0.05)


def test_a_whole_small_run(tmp_path: Path) -> None:
    done = art("quickstart", *TINY, "--seed", "1", "--output", "run", "--json", "result.json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["before"]["attempts"] == result["after"]["attempts"] == 12
    assert 0.0 <= result["before"]["not_lost"] <= 1.0
    assert len(result["rewards"]) == 2 and result["seed"] == 1
    assert (tmp_path / "run" / "reward.png").read_bytes().startswith(b"\x89PNG")
    for file in result["files"].values():
        assert (tmp_path / file).exists(), file
    for shown in (
        "step   1/2",
        "step   2/2",
        "before",
        "after",
        "not lost",
        "What to try next",
        "run/reward.png",
    ):
        assert shown in done.stdout, shown
    # A finished run goes on when more steps are asked for, and says so when it holds a run already.
    again = art("quickstart", *TINY, "--output", "run", cwd=tmp_path)
    assert again.returncode == 1 and "--resume" in again.stdout
    more = art("quickstart", "--resume", "--output", "run", "--steps", "3", cwd=tmp_path)
    assert more.returncode == 0, more.stdout + more.stderr
    assert len(json.loads((tmp_path / "run" / "result.json").read_text())["rewards"]) == 3


def test_the_mail_agent_takes_a_step(tmp_path: Path) -> None:
    done = art("quickstart", "mail", *TINY, "--steps", "1", "--output", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "right" in done.stdout


def test_an_unknown_task_is_one_readable_line(tmp_path: Path) -> None:
    done = art("quickstart", "chess", cwd=tmp_path)
    assert done.returncode == 1
    assert (
        "chess" in done.stdout
        and "tic-tac-toe" in done.stdout
        and "Traceback" not in done.stdout + done.stderr
    )


def hear_interrupts() -> None:
    """A shell that starts the tests in its background has them ignore Ctrl-C, and their children too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupt_after_first_step(folder: Path, cwd: Path) -> None:
    """Start a deterministic run, press Ctrl-C after its first step, and check that it ends cleanly."""
    # Far more steps than it makes until then, also where this process is held up meanwhile.
    command = [ART, "quickstart", *TINY, "--steps", "99", "--deterministic", "--output", str(folder)]
    run = subprocess.Popen(
        command,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_interrupts,
    )
    try:
        wait_for_lines(folder / "steps.jsonl", 1, deadline=150)
        children = psutil.Process(run.pid).children(recursive=True)
        run.send_signal(signal.SIGINT)
        output, errors = run.communicate(timeout=120)
    finally:
        run.kill()
    assert run.returncode == 130, output + errors
    assert "--resume" in output and "Traceback" not in output + errors
    _gone, alive = psutil.wait_procs(children, timeout=60)
    assert not alive, alive


def test_an_interrupted_run_resumes_to_the_same_weights(tmp_path: Path) -> None:
    straight = art(
        "quickstart", *TINY, "--steps", "3", "--deterministic", "--output", "straight", cwd=tmp_path
    )
    assert straight.returncode == 0, straight.stdout + straight.stderr
    interrupt_after_first_step(tmp_path / "broken", tmp_path)
    made = (tmp_path / "broken" / "steps.jsonl").read_text().count("\n")
    steps = str(max(3, made + 1))
    resumed = art("quickstart", "--resume", "--output", "broken", "--steps", steps, cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    for step in (1, 2, 3):
        assert adapter(tmp_path / "broken", "tic-tac-toe", step) == adapter(
            tmp_path / "straight", "tic-tac-toe", step
        )
    assert adapter(tmp_path / "straight", "tic-tac-toe", 1) != adapter(
        tmp_path / "straight", "tic-tac-toe", 2
    )
