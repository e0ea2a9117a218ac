"""What every tracker promises, with the real library: its own reader finds the numbers that were reported.

Trackio and MLflow run in an environment of their own (`make test` makes it).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
OTHERS = ROOT / ".venv-trackers" / "bin" / "python"
MISSING = not OTHERS.exists() and not os.environ.get("ART_TEST_EVERYTHING")
pytestmark = pytest.mark.slow
apart = pytest.mark.skipif(MISSING, reason="no .venv-trackers: `make .venv-trackers/.installed`")
TRACKERS = ["tensorboard", pytest.param("trackio", marks=apart), pytest.param("mlflow", marks=apart)]


def start(what: str, name: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """The program for a tracker in a process of its own, which has no network."""
    python = sys.executable if name == "tensorboard" else str(OTHERS)
    variables = {
        **{"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(ROOT / "src")},
        **{"TRACKIO_DIR": str(folder / "trackio"), "HF_HUB_OFFLINE": "1", "GIT_PYTHON_REFRESH": "quiet"},
        **{"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db", "ART_TRACKED_TRAJECTORIES": "2"},
        **more,
    }
    command = [python, str(HERE / "tracker_program.py"), what, name, str(folder)]
    return subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module", params=TRACKERS)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the reader finds of two models, the first of which went on in a process that was killed."""
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    wrote = start("write", name, folder)
    assert wrote.returncode == 0 and "failed" not in wrote.stderr, wrote.stderr
    killed = start("killed", name, folder)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    read = start("read", name, folder)
    assert read.returncode == 0, read.stderr
    return json.loads(read.stdout.splitlines()[-1])


def test_the_same_numbers_come_out_and_a_later_process_goes_on(found):
    acc = sorted(map(tuple, found["first"]["rows"]["val/acc"]))
    assert acc == [(1, 0.25), (2, 0.5), (3, 0.75), (4, 0.25), (5, 5.0), (6, 6.0)]  # 6: killed right after
    assert sorted(map(tuple, found["first"]["rows"]["val/low"])) == [
        (1, pytest.approx(-1e-3)),
        (3, pytest.approx(-3e-3)),
    ]


def test_two_models_stay_apart(found):
    assert found["second"]["rows"]["val/acc"] == [[1, -7.0]] and found.keys() == {"first", "second"}


def test_numbers_that_are_not_finite_are_left_out(found):
    assert not [tag for tag in found["first"]["rows"] if "nan" in tag or "inf" in tag]


def test_hostile_names_and_texts_arrive_as_text(found):
    [tag] = [tag for tag in found["first"]["rows"] if "script" in tag]
    assert found["first"]["rows"][tag] == [[4, 1.0]]
    assert "onerror=alert(1)" in found["first"]["words"]  # the table of trajectories
    assert "0.1" in found["first"]["config"] and "onerror=alert(1)" in found["first"]["config"]


@apart
def test_a_server_that_refuses_connections_stops_nothing(tmp_path):
    variables = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    wrote = start("write", "mlflow", tmp_path, **variables)
    assert wrote.returncode == 0 and wrote.stderr.count("mlflow failed, the run goes on") == 2  # two models
    rows = (tmp_path / "games" / "models" / "first" / "history.jsonl").read_text().splitlines()
    assert len(rows) == 4


@apart
def test_a_server_that_never_answers_stops_nothing(tmp_path):
    ended = start("hang", "mlflow", tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("mlflow takes over 0.1 s") == 1
    assert "2 rows of 'first' had not arrived when the program ended" in ended.stderr
