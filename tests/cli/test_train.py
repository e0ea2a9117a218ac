"""`art train` as it is typed: a run that is killed and resumed, and what it says to wrong options."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from art.cli import app
from art.tracking.model_files import read_history
from waiting import eventually

COMMAND = [
    *(str(Path(sys.executable).with_name("art")), "train", "--environment", "yes-no-maybe"),
    *(
        "--base-model",
        "art/nano-games",
        "--name",
        "talker",
        "--steps",
        "2",
        "--groups-per-step",
        "4",
        "--group-size",
        "8",
    ),
    *("--eval-scenarios", "10", "--eval-every", "1", "--environment-option", "train=8"),
]
RUN = Path(".art/environments/train/talker")


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kill comes after the first step, before or while the second is made."""
    rows = tmp_path / RUN / "steps.jsonl"
    begun = subprocess.Popen(COMMAND, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        eventually(lambda: rows.is_file() or begun.poll() is not None)
        assert begun.poll() is None, begun.stderr and begun.stderr.read()
    finally:
        begun.send_signal(signal.SIGKILL)
        begun.communicate()
    before = rows.read_text().splitlines()

    again = subprocess.run(
        [*COMMAND, "--json", "report.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert again.returncode == 0, again.stderr[-2000:]
    assert "going on with the run in .art/environments/train/talker" in again.stdout
    assert "yes-no-maybe: 8 scenarios to train on, 10 to validate with" in again.stdout
    after = rows.read_text().splitlines()
    assert after[: len(before)] == before and [json.loads(row)["step"] for row in after] == [1, 2]
    history = [*read_history(tmp_path / ".art/environments/models/talker/history.jsonl")]
    assert [row["step"] for row in history if "train/reward" in row] == [1, 2]
    assert [row["step"] for row in history if "val/reward" in row] == [0, 1, 2]
    assert all(row["train/scenarios/known"] == 8 for row in history if "train/reward" in row)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["model"] == "environments/talker" and report["environment"] == "yes-no-maybe"
    for side in ("before", "after"):
        told = report["comparison"][side]["estimate"]
        assert told["count"] == 10 and told["low"] <= told["mean"] <= told["high"]
    assert sorted(report["evaluations"]) == ["0", "1", "2"]

    monkeypatch.chdir(tmp_path)
    other = CliRunner().invoke(app, [*COMMAND[1:], "--thin", "0.5"])
    assert other.exit_code == 1 and "thin=0.5, but the run was started with 0.1" in other.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--environment", "tic-tac-to"], "unknown environment 'tic-tac-to': did you mean 'tic-tac-toe'"),
        (["--environment-option", "train"], "--environment-option 'train' is not KEY=VALUE"),
        (["--environment-option", "trian=5"], "did you mean 'train'"),
        (["--base-model", "art/nano-chess"], "art/nano-chess"),
        (["--engine", "sglang"], "sglang"),
    ],
)
def test_a_wrong_option_is_one_line_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"--environment": "tic-tac-toe", "--base-model": "art/nano-games", options[0]: options[1]}
    done = CliRunner().invoke(app, ["train", *(word for pair in given.items() for word in pair)])
    assert done.exit_code == 1 and message in done.stderr, done.output
    assert len(done.stderr.splitlines()) == 1
    assert not any(path.is_file() for path in Path(os.curdir).rglob("*"))
