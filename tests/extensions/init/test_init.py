"""`art init` writes a project that runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from art import errors
from art.cli import app
from art.errors import ConfigurationError, install_command
from art_extensions.init.command import TEMPLATES, create_project
from starting import StartedProgram
from waiting import eventually, gone

FEW_LINES = 80
TASKSETS = Path(__file__).parents[3] / ".venv-verifiers-tasksets"
_RUN = """\
if sys.argv[0] == "-m":
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    runpy.run_path(sys.argv[0], run_name="__main__")
"""
SHORT_RUN = "python train.py --steps 1"


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_file_is_written_and_every_blank_filled(tmp_path: Path, template: str) -> None:
    written = create_project(tmp_path / "my-agent", template=template, base_model="org/model")
    names = {str(path.relative_to(tmp_path / "my-agent")) for path in written}
    assert names == {target for _, target, _ in TEMPLATES[template].targets()}
    assert {"README.md", ".gitignore", "train.py"} <= names
    readme = (tmp_path / "my-agent" / "README.md").read_text()
    listed = {f"{folder}/" if rest else folder for folder, _, rest in (name.partition("/") for name in names)}
    assert all(f"`{name}`" in readme for name in listed - {"README.md", ".gitignore"})
    assert all(len(path.read_text().splitlines()) <= FEW_LINES for path in written if path.suffix == ".py")
    text = "".join(path.read_text() for path in written)
    assert "__" not in text.replace("__main__", "").replace("__name__", "").replace("__doc__", "").replace(
        "__future__", ""
    ).replace("__pycache__", "").replace("__all__", "")
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


def test_templates_are_chosen_by_name_and_help_lists_them(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["init", str(tmp_path / "a"), "--template", "tool"])
    assert result.exit_code == 2 and "did you mean 'tools'?; known: agent, tools, langgraph" in result.output
    assert not (tmp_path / "a").exists()
    helped = " ".join(CliRunner().invoke(app, ["init", "--help"]).output.split())
    assert all(f"{name} (" in helped for name in TEMPLATES), helped


@pytest.mark.parametrize("template", TEMPLATES)
def test_what_a_template_needs_is_installed_by_its_readme(tmp_path: Path, template: str) -> None:
    """And by what the verb prints, where it is missing."""
    create_project(tmp_path / "a", template=template)
    (block,) = re.findall(r"```bash\n(.*?)```", (tmp_path / "a" / "README.md").read_text(), re.S)
    install, *runs = block.splitlines()
    assert install == install_command(",".join(TEMPLATES[template].extras))
    assert runs == [SHORT_RUN, "python train.py"]


def test_a_missing_extra_is_the_first_of_the_next_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "find_spec", lambda module: None if module == "mcp" else find_spec(module))
    for template, first in (("mcp", install_command("local,mcp")), ("tools", f"cd {tmp_path / 'tools'}")):
        result = CliRunner().invoke(app, ["init", str(tmp_path / template), "--template", template])
        assert result.output.partition("Next:\n")[2].splitlines()[0].strip() == first


def run_project(folder: Path, template: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in a project. For verifiers, its environment of Python stands behind the tests' own."""
    variables = dict(os.environ)
    command = [sys.executable, *words]
    if template == "verifiers":
        (library,) = (TASKSETS / "lib").glob("python*/site-packages")
        behind = f"import runpy, sys\nsys.path[:0] = ['']\nsys.path.append({str(library)!r})\n"
        (folder / "behind.py").write_text(behind + "sys.argv = sys.argv[1:]\n" + _RUN)
        command = [sys.executable, "-W", "ignore", "behind.py", *words]
        variables["PATH"] = f"{TASKSETS / 'bin'}{os.pathsep}{variables['PATH']}"
    return subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=580, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "template",
    [
        "environment",
        "harbor",
        pytest.param(
            "verifiers",
            marks=pytest.mark.skipif(
                not TASKSETS.exists() and not os.environ.get("ART_TEST_EVERYTHING"),
                reason="no environment: `make .venv-verifiers-tasksets/.installed`",
            ),
        ),
    ],
)
def test_a_project_with_an_environment_trains_and_its_own_test_passes(tmp_path: Path, template: str) -> None:
    create_project(tmp_path, template=template, project="skeleton")
    done = run_project(tmp_path, template, *SHORT_RUN.split()[1:])
    assert done.returncode == 0, done.stderr
    (line,) = (tmp_path / ".art/skeleton/models/agent-001/history.jsonl").read_text().splitlines()
    row = json.loads(line)
    groups = {"environment": 8, "harbor": 2, "verifiers": 4}[template]
    assert row["step"] == 1 and row["data/sheet/started_rollouts"] == 8 * groups
    assert row.get("data/sheet/failed_rollouts", 0) == 0
    assert template == "harbor" or row["data/sheet/trained_rollouts"] > 0, (
        "rewards that depend on the replies"
    )
    tested = run_project(tmp_path, template, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert tested.returncode == 0 and " passed" in tested.stdout, tested.stdout


@pytest.mark.slow
@pytest.mark.parametrize("template", ["tools", "langgraph", "mcp", "sft"])
def test_a_template_trains_by_the_command_of_its_readme(tmp_path: Path, template: str) -> None:
    create_project(tmp_path, template=template, project="skeleton")
    done = subprocess.run(
        [sys.executable, *SHORT_RUN.split()[1:]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "step 1 of agent-001: " in done.stderr, "ART reports each step by itself"
    (row,) = [
        json.loads(line)
        for line in (tmp_path / ".art/skeleton/models/agent-001/history.jsonl").read_text().splitlines()
    ]
    assert row["step"] == 1 and row["data/sheet/trained_rollouts"] >= 8
    assert (tmp_path / ".art/skeleton/models/agent-001/checkpoints/0001/adapter_config.json").exists()


def interrupt(command: list[str], folder: Path) -> None:
    """Presses Ctrl-C when the program trains: it ends with one line, and nothing of it stays."""
    with StartedProgram(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline().startswith("step 2: ")  # evaluated: now it gathers or trains
        children = psutil.Process(program.pid).children(recursive=True)
        program.send_signal(signal.SIGINT)
        _, log = program.communicate(timeout=240)
    assert program.returncode == 130 and log.endswith("\nstopped by Ctrl-C\n"), log
    assert "Traceback" not in log and len(children) >= 3
    eventually(lambda: all(gone(child) for child in children))


@pytest.mark.slow
def test_the_skeleton_trains_evaluates_and_resumes(tmp_path: Path) -> None:
    create_project(tmp_path, base_model="art/nano-games", project="skeleton")

    def command(steps: int) -> list[str]:
        return [sys.executable, "train.py", "--steps", str(steps), "--group-size", "4"]

    def run(steps: int) -> tuple[list[str], str]:
        done = subprocess.run(
            command(steps), cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stderr
        return [line.split(":")[0] for line in done.stdout.splitlines()], done.stderr

    def history() -> list[dict[str, Any]]:
        file = tmp_path / ".art/skeleton/models/agent-001/history.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()]

    evaluated, log = run(2)
    assert evaluated == ["step 0", "step 2"]
    phases = [
        "starting the server",
        "loading the tokenizer of art/nano-games",
        "loading art/nano-games into engine and trainer",
    ]
    phases += ["checking that engine and trainer agree", "serving step 0", "ready in "]
    at = [log.index(f" art: agent-001: {phase}") for phase in phases]
    assert at == sorted(at), log
    lines = [line for line in log.splitlines() if "groups trained" in line]
    assert [line[8:41] for line in lines] == [f" art: step {step} of agent-001: reward" for step in (1, 2)]
    assert [row["step"] for row in history() if "train/reward" in row] == [1, 2]
    interrupt(command(1000), tmp_path)
    newest = history()[-1]["step"]  # and perhaps one more, which its client did not live to log
    evaluated, log = run(newest + 2)
    assert evaluated[-1] == f"step {newest + 2}" and "ready in " in log
    rows = history()
    assert rows[-1]["step"] == newest + 2
    assert all(0.5 <= row["val/reward"] <= 1.0 for row in rows if "val/reward" in row)
