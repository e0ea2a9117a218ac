"""What every tracker promises, with the real library: its own reader finds the numbers that were reported.

Trackio and MLflow run in an environment that `make test-all` makes. It has the client of MLflow that the
extra installs, and in a folder beside it the whole MLflow, for a real server.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from waiting import eventually

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
OTHERS = ROOT / ".venv-trackers" / "bin" / "python"
WHOLE_MLFLOW = OTHERS.parents[1] / "mlflow-server"
MISSING = not WHOLE_MLFLOW.exists() and not os.environ.get("ART_TEST_EVERYTHING")
pytestmark = pytest.mark.slow
apart = pytest.mark.skipif(MISSING, reason="no .venv-trackers: `make .venv-trackers/.installed`")
SERVER = "mlflow server"
APART = ("trackio", "mlflow", SERVER)
TRACKERS = ["tensorboard", *(pytest.param(name, marks=apart) for name in APART)]
ADDRESS = re.compile(r"Uvicorn running on (http://\S+)")


def start(what: str, name: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """The program for a tracker in a process of its own, which has no network."""
    python = sys.executable if name == "tensorboard" else str(OTHERS)
    variables = {
        **{"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(ROOT / "src")},
        **{"TRACKIO_DIR": str(folder / "trackio"), "HF_HUB_OFFLINE": "1", "GIT_PYTHON_REFRESH": "quiet"},
        **{"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db", "ART_TRACKED_TRAJECTORIES": "2"},
        "ART_TRACKED_CHECKPOINTS": "1",
        **more,
    }
    command = [python, str(HERE / "tracker_program.py"), what, name, str(folder)]
    return subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, timeout=300)


@contextmanager
def mlflow_server(folder: Path) -> Iterator[dict[str, str]]:
    """Yields the variables of a program that reports to a server, whose database is the folder's."""
    command = [str(OTHERS), "-m", "mlflow", "server", "--workers", "1", "--host", "127.0.0.1", "--port", "0"]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    variables = {
        **{"PATH": os.environ["PATH"], "HOME": str(folder), "MLFLOW_DISABLE_TELEMETRY": "true"},
        **{"PYTHONPATH": str(WHOLE_MLFLOW)},
        **{"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
    }
    log = folder / "server.log"
    with log.open("w") as file:
        server = subprocess.Popen(
            command, env=variables, cwd=folder, stdout=file, stderr=file, start_new_session=True
        )
    try:
        eventually(lambda: ADDRESS.search(log.read_text()) or server.poll() is not None)
        listens = ADDRESS.search(log.read_text())
        assert listens, log.read_text()
        yield {"MLFLOW_TRACKING_URI": listens[1], "SERVER_GROUP": str(server.pid)}
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.fixture(scope="module", params=TRACKERS)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the reader finds of two models, the first of which went on in a process that was killed."""
    folder = tmp_path_factory.mktemp("reported")
    if request.param == SERVER:
        with mlflow_server(folder) as variables:
            told = {"over": SERVER, **wrote_and_read("mlflow", folder, **variables)}
            (later := folder / "later").mkdir()
            ended = start("stop", "mlflow", later, **variables, MLFLOW_HTTP_REQUEST_MAX_RETRIES="0")
            return {**told, "stopped": (ended.returncode, ended.stderr, later)}
    return {"over": request.param, **wrote_and_read(request.param, folder)}


def wrote_and_read(name: str, folder: Path, **more: str) -> dict[str, Any]:
    wrote = start("write", name, folder, **more)
    assert wrote.returncode == 0 and "failed" not in wrote.stderr, wrote.stderr
    killed = start("killed", name, folder, **more)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    told = start("read", name, folder, **more)
    assert told.returncode == 0, told.stderr
    found: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    return found


def test_the_same_numbers_come_out_and_a_later_process_goes_on(found):
    acc = sorted(map(tuple, found["first"]["rows"]["val/acc"]))
    assert acc == [(1, 0.25), (2, 0.5), (3, 0.75), (4, 0.25), (5, 5.0), (6, 6.0)]  # 6: killed right after
    assert sorted(map(tuple, found["first"]["rows"]["val/low"])) == [
        (1, pytest.approx(-1e-3)),
        (3, pytest.approx(-3e-3)),
    ]


def test_two_models_stay_apart(found):
    assert found["second"]["rows"]["val/acc"] == [[1, -7.0]] and found.keys() - {"over", "stopped"} == {
        "first",
        "second",
    }


def test_numbers_that_are_not_finite_are_left_out(found):
    assert not [tag for tag in found["first"]["rows"] if "nan" in tag or "inf" in tag]


def test_hostile_names_and_texts_arrive_as_text(found):
    [tag] = [tag for tag in found["first"]["rows"] if "script" in tag]
    assert found["first"]["rows"][tag] == [[4, 1.0]]
    assert "onerror=alert(1)" in found["first"]["words"]  # the table of trajectories
    assert "0.1" in found["first"]["config"] and "onerror=alert(1)" in found["first"]["config"]


def test_what_people_filter_runs_by_is_in_the_config(found):
    first, second = found["first"]["config"], found["second"].get("config", "")
    told = {"base_model": "art/nano-words", "config.prompt": "brief", "project": "games", "model": "first"}
    told |= {"train.learning_rate": "0.00025", "train.algorithm.loss": "cispo"}
    if found["over"] == "tensorboard":  # in the environments of the others the library is not installed
        told["version"] = version("agent-reinforcement-trainer")
    for name, value in told.items():
        assert f"art.{name}" in first and value in first, name
    assert "k9" not in first and "base_model" not in second
    if "mlflow" in found["over"]:
        tags = found["first"]["tags"]
        assert tags["art.base_model"] == told["base_model"]
        assert {name for name in tags if name.startswith("art.tag.")} == {
            "art.tag.long replies",
            "art.tag.try 2",
        }


def test_the_adapter_of_a_step_is_an_artifact_where_the_tracker_keeps_files(found):
    if found["over"] == "tensorboard":
        pytest.skip("it keeps no files")
    assert found["first"]["adapters"] == {"step2": ["adapter_config.json", "adapter_model.safetensors"]}
    assert found["second"]["adapters"] == {}, "its checkpoint is not on this machine"


def test_a_run_of_mlflow_is_known_by_its_tag_and_keeps_its_files_at_the_server(found):
    if "mlflow" not in found["over"]:
        pytest.skip("of MLflow")
    first, second = found["first"], found["second"]
    assert len({one["tags"]["art.run"] for one in (first, second)}) == 2
    assert (first["tags"]["art.project"], first["tags"]["art.model"]) == ("games", "first")
    assert second["status"] == "FINISHED" and first["status"] == "RUNNING"  # its process was killed
    assert first["artifacts"].startswith("mlflow-artifacts:/") == (found["over"] == SERVER)


def test_a_server_that_stops_is_told_once_and_has_the_rows_before(found):
    if "stopped" not in found:
        pytest.skip("of MLflow's server")
    code, said, folder = found["stopped"]
    assert code == 0, said
    assert said.count("(logged once; all rows are in history.jsonl)") == 1
    assert "mlflow failed, the run goes on without it" in said
    rows = (folder / "games" / "models" / "first" / "history.jsonl").read_text().splitlines()
    assert len(rows) == 3
    with closing(sqlite3.connect(folder.parent / "mlflow.db")) as database:
        kept = database.execute("select step, value from metrics where key = 'val/acc' and step > 6")
        assert kept.fetchall() == [(7, 7.0)]


@apart
def test_a_server_that_refuses_connections_stops_nothing(tmp_path):
    variables = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    wrote = start("write", "mlflow", tmp_path, **variables)
    assert wrote.returncode == 0 and wrote.stderr.count("mlflow failed, the run goes on") == 2  # two models
    rows = (tmp_path / "games" / "models" / "first" / "history.jsonl").read_text().splitlines()
    assert len(rows) == 5


@apart
def test_a_server_that_never_answers_stops_nothing(tmp_path):
    ended = start("hang", "mlflow", tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("mlflow takes over 0.1 s") == 1
    assert "2 rows of 'first' had not arrived when the program ended" in ended.stderr
