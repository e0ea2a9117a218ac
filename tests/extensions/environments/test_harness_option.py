"""`--harness` names the program that asks the model, where an environment has such programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest
from typer.testing import CliRunner

from art.cli.main import app
from art.utils.trajectory_logging import read_trajectory_groups

ROOT = Path(__file__).parents[3]
TASKSETS = ROOT / ".venv-verifiers-tasksets"
MISSING = not (TASKSETS / "bin" / "python").exists() and not os.environ.get("ART_TEST_EVERYTHING")
PROGRAMS = Path(__file__).parent / "programs"
tasksets = pytest.mark.skipif(MISSING, reason="no environment: `make .venv-verifiers-tasksets/.installed`")
TRAIN = ("--base-model", "art/nano-tools", "--steps", "1", "--groups-per-step", "1", "--group-size", "2")


def refused(*words: str) -> str:
    done = CliRunner().invoke(app, [*words])
    assert done.exit_code in (1, 2) and len(done.stderr.splitlines()) == 1, done.output
    return done.stderr


@pytest.mark.slow  # the first import of all kinds
@pytest.mark.parametrize("name", ["tic-tac-toe", "gymnasium:worlds:Guess", "python:worlds:Echo"])
def test_an_environment_without_harnesses_names_the_kinds_that_have_some(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "has no harnesses; kinds that have: harbor:NAME, verifiers:NAME"
    assert words in refused("train", "--environment", name, "--harness", "bash", *TRAIN)
    assert words in refused("eval", "p/m", "--environment", name, "--harness", "bash")


def test_a_harness_is_given_once_and_to_an_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    both = ("--environment", "harbor:tasks", "--harness", "a:b", "--environment-option", "agent=c:d")
    assert "--harness is the environment's option agent" in refused("train", *both, *TRAIN)
    assert "--harness is for --environment NAME" in refused("eval", "p/m", "--task", "mail", "--harness", "x")


def test_an_unknown_harness_is_refused_in_the_environments_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"instruction.md": "Do it.", "tests/test.sh": "true", "task.toml": ""}.items():
        (tmp_path / "task" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "task" / name).write_text(text)
    (tmp_path / "task" / "environment").mkdir()
    (tmp_path / "task" / "environment" / "Dockerfile").write_text("FROM ubuntu\n")
    harbor = ("train", "--environment", "harbor:task", "--harness", "terminus")
    assert "agent 'terminus': write module:name" in refused(*harbor, *TRAIN)
    verifiers = ("train", "--environment", "verifiers:wordle", "--harness", "bash")
    told = refused(*verifiers, *TRAIN)
    assert "harness='bash' needs verifiers 0.4" in told and "verifiers-tasksets" in told


def beside_verifiers(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command with verifiers of its own environment of Python, behind the packages of this one."""
    (library,) = (TASKSETS / "lib").glob("python*/site-packages")
    (folder / "run.py").write_text(
        f"import sys\nsys.path.append({str(library)!r})\nfrom art.cli.main import app\napp()\n"
    )
    return subprocess.run(
        [sys.executable, "-W", "ignore", "run.py", *words],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{TASKSETS / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{PROGRAMS}",
        },
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )


@pytest.mark.slow
@tasksets
def test_a_harness_that_needs_a_container_is_refused_before_a_run_begins(tmp_path: Path) -> None:
    words = ("train", "--environment", "verifiers:say_words", "--harness", "mini_swe_agent", *TRAIN)
    done = beside_verifiers(tmp_path, *words)
    assert done.returncode == 1 and "the harness 'mini_swe_agent' runs in a container alone" in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / ".art").exists()


@pytest.mark.slow
@tasksets
def test_a_taskset_is_trained_and_evaluated_with_the_harness_that_is_named(tmp_path: Path) -> None:
    done = beside_verifiers(
        tmp_path,
        *("train", "--environment", "verifiers:say_words", "--harness", "null", "--eval-scenarios", "1"),
        *("--max-tokens", "8", "--name", "worder", *TRAIN),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    run = tmp_path / ".art" / "environments" / "train" / "worder"
    assert [json.loads(row)["step"] for row in (run / "steps.jsonl").read_text().splitlines()] == [1]
    evaluated = json.loads((run / "evaluation-0001.jsonl").read_text().splitlines()[0])
    assert {one["metadata"]["harness"] for one in evaluated} == {"null"}

    done = beside_verifiers(
        tmp_path,
        *("eval", "environments/worder", "--environment", "verifiers:say_words", "--harness", "null"),
        *("--split", "asked", "--json"),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert (told["step"], told["of"]) == (1, "verifiers:say_words")
    folder = tmp_path / ".art" / "environments" / "models" / "worder" / "trajectories" / "asked"
    groups = read_trajectory_groups(folder / "0001.parquet")
    rollouts = [one for group in groups for one in group]
    assert {one.metadata["harness"] for one in rollouts} == {"null"}
    assert len({one.metadata["scenario_id"] for one in rollouts}) == len(rollouts) == 3  # half of the tasks
    rewards = [one.reward for one in rollouts if isinstance(one.reward, float)]
    assert told["sampled"]["means"]["reward"] == pytest.approx(fmean(rewards))
