"""The program of docs/guides/coding-agents.md: a folder of tasks in, a curve out, in 25 lines."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from art.errors import ConfigurationError
from art_extensions.harbor.mini_swe_agent import MiniSettings

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "coding_agent.py"
PAGE = ROOT / "docs" / "guides" / "coding-agents.md"
AGENTS = ROOT / ".venv-agents" / "bin"
MISSING = not AGENTS.exists() and not os.environ.get("ART_TEST_EVERYTHING")


def test_the_page_shows_the_program_and_it_is_short() -> None:
    program = EXAMPLE.read_text(encoding="utf-8")
    assert f"```python\n{program}```" in PAGE.read_text(encoding="utf-8")
    assert len(program.splitlines()) <= 25


def test_the_page_s_curve_is_that_of_the_record() -> None:
    record = (ROOT / "bench" / "records" / "environments.jsonl").read_text(encoding="utf-8")
    (run,) = (one for one in map(json.loads, record.splitlines()) if one["name"] == "coding-agent")
    lines = "".join(line_of(one["step"], one["reward"]) for one in run["measured"]["steps"])
    assert f"```text\n{lines}```" in PAGE.read_text(encoding="utf-8")
    assert run["job"]["options"]["request"]["extra_body"]["guided_regex"] == example("COMMAND")
    sizes = {**example("SIZES"), **example("RATE")}
    assert {name: run["job"].get(name, value) for name, value in sizes.items()} == sizes


def line_of(step: int, reward: float) -> str:
    return f"step {step:2} {reward:5.2f} {'#' * round(40 * reward)}\n"


def example(name: str) -> Any:
    """Returns a constant of the program."""
    return runpy.run_path(str(EXAMPLE))[name]


def test_the_interpreter_is_that_of_the_command_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A virtual environment has the command, its interpreter and the package; a link may be elsewhere."""
    (tmp_path / "links").mkdir()
    (tmp_path / "agents" / "bin").mkdir(parents=True)
    command, python = (tmp_path / "agents" / "bin" / name for name in ("mini", "python"))
    for file in (command, python):
        file.touch(0o755)
    (tmp_path / "links" / "mini").symlink_to(command)
    monkeypatch.setenv("PATH", str(tmp_path / "links"))
    with pytest.raises(ConfigurationError, match=r"no interpreter is named.*`mini` on the PATH"):
        MiniSettings()  # another program of that name
    (tmp_path / "agents" / "lib" / "python3.11" / "site-packages" / "minisweagent").mkdir(parents=True)
    assert MiniSettings().python == str(python)


def test_a_configuration_of_ours_has_a_name_and_others_stay_as_they_are(tmp_path: Path) -> None:
    settings = MiniSettings(python=sys.executable, config=["small-model", "mini.yaml", "agent.step_limit=3"])
    assert Path(settings.config[0]).is_file() and settings.config[1:] == ["mini.yaml", "agent.step_limit=3"]


def write_tasks(folder: Path) -> None:
    """Runs the other program of the page, which writes tasks and checks them."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    (block,) = (one for one in blocks if one != EXAMPLE.read_text(encoding="utf-8"))
    body = indent(block, "    ")
    program = f"import asyncio\nasync def page():\n{body}\nasyncio.run(page())\n"
    subprocess.run([sys.executable, "-c", program], cwd=folder, check=True, timeout=240)


@pytest.mark.slow
@pytest.mark.frameworks
@pytest.mark.skipif(MISSING, reason="no mini-swe-agent: `make .venv-agents/.installed`")
def test_it_trains_the_agent_on_the_page_s_tasks_and_draws_the_curve(tmp_path: Path) -> None:
    """One step of SmolLM2: 32 rollouts of the package's agent in the jail, before which and after which it
    is evaluated.
    """
    write_tasks(tmp_path)
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "tasks", "1"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{AGENTS}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (history,) = tmp_path.glob(".art/environments/models/harbor-tasks/history.jsonl")
    rows = [json.loads(line) for line in history.read_text().splitlines()]
    (reward,) = (row["train/reward"] for row in rows if "train/reward" in row)
    (trained,) = (row["data/sheet/trained_rollouts"] for row in rows if "data/sheet/trained_rollouts" in row)
    assert 0 < reward < 1 and trained >= 8, "some commands write a file, and the tests give each its reward"
    assert re.findall(r"^step .*\n", done.stdout, re.M) == [line_of(1, reward)]
    ((before, after),) = re.findall(r"^held-out tasks: (\S+) -> (\S+)$", done.stdout, re.M)
    assert 0 <= float(before) < 1 and 0 <= float(after) <= 1
