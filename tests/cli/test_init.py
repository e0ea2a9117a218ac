"""`art init` writes a project that runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from art.cli import app
from art.cli.init.command import FILES, create_project
from art.errors import ConfigurationError


def test_every_file_is_written_and_every_blank_filled(tmp_path: Path) -> None:
    written = create_project(tmp_path / "my-agent", base_model="org/model")
    assert [path.name for path in written] == list(FILES.values())
    text = "".join(path.read_text() for path in written)
    assert "__" not in text.replace("__main__", "").replace("__name__", "").replace("__doc__", "").replace(
        "__future__", ""
    ).replace("__pycache__", "")
    assert 'project="my-agent"' in text and 'default="org/model"' in text


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"train\.py: there already"):
        create_project(tmp_path, base_model="art/nano", project="p")
    assert (tmp_path / "train.py").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_folder_that_cannot_name_a_project_needs_a_name(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["init", str(tmp_path / "my agent")])
    assert result.exit_code == 2 and "--project" in result.output
    result = CliRunner().invoke(app, ["init", str(tmp_path / "my agent"), "--project", "agent"])
    assert result.exit_code == 0 and "python train.py" in result.output


@pytest.mark.slow
def test_the_skeleton_trains_evaluates_and_resumes(tmp_path: Path) -> None:
    create_project(tmp_path, base_model="art/nano-games", project="skeleton")

    def run(steps: int) -> str:
        command = [sys.executable, "train.py", "--steps", str(steps), "--group-size", "4"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert [line.split(":")[0] for line in run(2).splitlines()] == ["step 0", "step 2"]
    assert [line.split(":")[0] for line in run(3).splitlines()] == ["step 2", "step 3"]
    rows = [
        json.loads(line)
        for line in (tmp_path / ".art/skeleton/models/agent-001/history.jsonl").read_text().splitlines()
    ]
    assert [row["step"] for row in rows if "train/reward" in row] == [1, 2, 3]
    assert all(0.5 <= row["val/reward"] <= 1.0 for row in rows if "val/reward" in row)
