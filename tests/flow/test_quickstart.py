"""`art quickstart` as a user meets it: the real command, the real server, a few tiny steps."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from waiting import DEADLINE_S, eventually

ART = str(Path(sys.executable).with_name("art"))
TINY = ["--steps", "2", "--groups-per-step", "2", "--group-size", "4", "--eval-rollouts", "12"]

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
        "in a browser: http://127.0.0.1:",
        "/ui/?token=",
        "step   1/2",
        "step   2/2",
        "before",
        "after",
        "not lost",
        "What to try next",
        "art ui",
        "run/reward.png",
    ):
        assert shown in done.stdout, shown
    assert "result: " in done.stdout and "not finished" not in done.stdout
    # A finished run goes on when more steps are asked for, and says so when it holds a run already.
    again = art("quickstart", *TINY, "--output", "run", cwd=tmp_path)
    assert again.returncode == 1 and "--resume" in again.stdout
    more = art("quickstart", "--resume", "--output", "run", "--steps", "3", cwd=tmp_path)
    assert more.returncode == 0, more.stdout + more.stderr
    assert len(json.loads((tmp_path / "run" / "result.json").read_text())["rewards"]) == 3
    history = tmp_path / "run" / "art" / "quickstart" / "models" / "tic-tac-toe" / "history.jsonl"
    rows = [json.loads(line) for line in history.read_text().splitlines()]
    trained = [row for row in rows if "train/reward" in row]
    assert all(
        row["system/workers_memory_bytes"] > 0 and row["system/server_cpu_cores"] > 0 for row in trained
    )
    evaluated = [row for row in rows if "val/reward" in row]
    assert [row["step"] for row in evaluated] == [0, 2, 3], "each evaluation once, beside the training curve"
    assert evaluated[0]["val/not_lost"] == result["before"]["not_lost"] and "val/reward_sem" in evaluated[0]


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


@pytest.mark.parametrize(
    ("base", "told"),
    [
        ("art/nanoo", "unknown model 'art/nanoo', did you mean 'art/nano'?"),
        ("./no/such folder", "is no folder here, and no name on the hub"),
    ],
)
def test_an_unknown_base_model_leaves_no_folder(tmp_path: Path, base: str, told: str) -> None:
    done = art("quickstart", "--base-model", base, cwd=tmp_path)
    assert done.returncode == 1 and told in done.stdout, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [ART, "quickstart", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def children(run: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(run.pid).children(recursive=True)


def worker(run: subprocess.Popen[str], module: str) -> psutil.Process:
    """The newest running worker of a kind, waited for."""
    found: list[psutil.Process] = []

    def there() -> bool:
        found[:] = []
        for process in children(run):
            with contextlib.suppress(psutil.Error):  # it ended while it was looked at
                found.extend([process] if module in process.cmdline() else [])
        return bool(found)

    eventually(there)
    return found[-1]


def all_gone(processes: list[psutil.Process]) -> None:
    _gone, alive = psutil.wait_procs(processes, timeout=240)
    assert not alive, alive


def killed_while_it_evaluates(folder: Path, cwd: Path) -> None:
    """kill -9 of the program while the first adapter is evaluated: prefixes of it are cached by then."""
    # Far more steps than it makes until then, also where this process is held up meanwhile.
    run = start(*TINY, "--steps", "3", "--deterministic", "--output", str(folder), cwd=cwd)
    ledger = folder / "art" / "server" / "ledger.sqlite-wal"
    try:
        eventually(lambda: ledger.exists() and ledger.stat().st_size > 40_000)
        begun = children(run)
    finally:
        run.kill()
        run.communicate()
    all_gone(begun)


def hurt_in_each_phase_then_interrupted(folder: Path, cwd: Path) -> None:
    """kill -9 of the engine between evaluation and first step, of the trainer after it, then Ctrl-C."""
    run = start("--resume", "--steps", "3", "--output", str(folder), cwd=cwd)
    try:
        eventually(lambda: (folder / "evaluation-0000.json").exists())
        worker(run, "art.engine.builtin.worker").kill()
        wait_for_lines(folder / "steps.jsonl", 1, deadline=DEADLINE_S)
        worker(run, "art.training.worker").kill()
        begun = children(run)
        run.send_signal(signal.SIGINT)
        output, errors = run.communicate(timeout=240)
    finally:
        run.kill()
    if run.returncode == 0:  # this process was held up until all its steps were made
        return
    assert run.returncode == 130, output + errors
    assert "--resume" in output and "Traceback" not in output + errors
    all_gone(begun)


@pytest.mark.timeout(1800)  # four starts of a server, beside other work
def test_a_killed_and_interrupted_run_resumes_to_the_same_weights(tmp_path: Path) -> None:
    straight = art(
        "quickstart", *TINY, "--steps", "3", "--deterministic", "--output", "straight", cwd=tmp_path
    )
    assert straight.returncode == 0, straight.stdout + straight.stderr
    killed_while_it_evaluates(tmp_path / "broken", tmp_path)
    hurt_in_each_phase_then_interrupted(tmp_path / "broken", tmp_path)
    resumed = art("quickstart", "--resume", "--output", "broken", "--steps", "3", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    for step in (1, 2, 3):
        assert adapter(tmp_path / "broken", "tic-tac-toe", step) == adapter(
            tmp_path / "straight", "tic-tac-toe", step
        )
    assert adapter(tmp_path / "straight", "tic-tac-toe", 1) != adapter(
        tmp_path / "straight", "tic-tac-toe", 2
    )
    for evaluation in ("evaluation-0000.json", "evaluation-0003.json"):
        assert (tmp_path / "broken" / evaluation).read_bytes() == (
            tmp_path / "straight" / evaluation
        ).read_bytes()
