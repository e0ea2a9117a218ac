"""The door for extensions: found by entry points, loaded when they are needed, missed by name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from art import extensions
from art.errors import ConfigurationError
from art.extensions import (
    COMMAND,
    DEPLOYMENT,
    DIALECT,
    ENGINE,
    ENVIRONMENT,
    GROUP,
    INSTALLATION,
    JOB,
    LORA,
    MIGRATION,
    MODEL,
    OPTIMIZER,
    PAGES,
    PASS,
    PLACER,
    PLOT,
    PRICES,
    PROVIDER,
    PUBLISHER,
    REWARD,
    ROLES,
    RUNTIME,
    SANDBOX,
    SINK,
    STORAGE,
    STORE,
    TUNER,
    WATCH,
    extension_points,
    load_extension,
)

SOURCE = Path(__file__).parents[1] / "src"
OURS = SOURCE / "art_extensions"
EXAMPLE = SOURCE.parent / "examples" / "extension"
PROGRAM = Path(__file__).parent / "extensions" / "programs" / "use_example.py"
ART = "from art.cli import app; app()"


def art(*words: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Runs `art` in a Python that looks for packages in `path` first."""
    return subprocess.run(
        [sys.executable, "-c", ART, *words],
        env={**os.environ, "PYTHONPATH": str(path), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


@pytest.mark.slow
def test_ours_come_through_the_door() -> None:
    kinds = (
        COMMAND,
        DEPLOYMENT,
        DIALECT,
        ENGINE,
        ENVIRONMENT,
        INSTALLATION,
        JOB,
        LORA,
        MIGRATION,
        MODEL,
        OPTIMIZER,
        PAGES,
        PASS,
        PLACER,
        PLOT,
        PRICES,
        PROVIDER,
        PUBLISHER,
        REWARD,
        ROLES,
        RUNTIME,
        SANDBOX,
        STORAGE,
        STORE,
        TUNER,
        WATCH,
    )
    found = {(kind, name): load_extension(kind, name) for kind in kinds for name in extension_points(kind)}
    assert found[COMMAND, "launch"].__name__ == "launch" and found[RUNTIME, "skypilot"].install
    folders = {point.value.split(".")[1] for kind in kinds for point in extension_points(kind).values()}
    there = {one.name for one in OURS.iterdir() if (one / "__init__.py").exists()}
    # Trackers load their libraries; the others are import paths that users know, or methods of trajectories.
    assert there - folders == {
        "langgraph",
        "pipeline",
        "sft_data",
        "sinks",
        "testing",
        "token_views",
    } and extension_points(SINK)


def test_one_that_nobody_gives_is_named_with_those_that_are_there() -> None:
    with pytest.raises(
        ConfigurationError, match="no extension gives the command 'lanch': did you mean 'launch'"
    ):
        load_extension(COMMAND, "lanch")


def test_one_that_cannot_be_loaded_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = EntryPoint("command.gone", "no_such_package.verbs:gone", GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [gone])
    monkeypatch.setattr("art.extensions._all_points", extensions._all_points.__wrapped__)
    with pytest.raises(ConfigurationError, match=r"'gone' is in no_such_package\.verbs:gone .*cannot be"):
        load_extension(COMMAND, "gone")


@pytest.mark.slow
def test_a_package_of_somebody_else_adds_a_command(tmp_path: Path) -> None:
    (tmp_path / "greeting.py").write_text(
        "import typer\n\n\ndef greet(name: str) -> None:\n"
        '    """Greet somebody."""\n    typer.echo(f"Good morning, {name}")\n'
    )
    metadata = tmp_path / "greeting-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        f"[{GROUP}]\ncommand.greet = greeting:greet\ncommand.broken = greeting:no_such_function\n"
    )
    done = art("greet", "Ada", path=tmp_path)
    assert (done.returncode, done.stdout) == (0, "Good morning, Ada\n"), done.stderr
    shown = art("--help", path=tmp_path)
    assert shown.returncode == 0 and "Greet somebody." in shown.stdout and "launch" in shown.stdout
    broken = art("broken", path=tmp_path)
    assert broken.returncode == 2 and "in greeting:no_such_function of greeting" in broken.stderr


@pytest.mark.slow
def test_the_loop_runs_without_any_extension(tmp_path: Path) -> None:
    """In a copy of the core; what stands where the extensions were cannot be imported."""
    shutil.copytree(SOURCE / "art", tmp_path / "art", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "art_extensions.py").write_text("raise ModuleNotFoundError('no extension is here')\n")
    shown = art("--help", path=tmp_path)
    assert shown.returncode == 0 and "quickstart" in shown.stdout, shown.stderr
    launch = art("launch", "box", path=tmp_path)
    assert launch.returncode == 2
    assert "art_extensions.launch.command" in launch.stderr and "cannot be loaded" in launch.stderr
    small = ("--steps", "1", "--groups-per-step", "2", "--group-size", "4", "--eval-rollouts", "8")
    done = art("quickstart", *small, "--output", str(tmp_path / "run"), path=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "run").is_dir()


@pytest.mark.slow
def test_the_example_is_installed_and_used(tmp_path: Path) -> None:
    """Its environment, tracker, command and loss, in a Python that has it and nothing else that is new."""
    package, site = tmp_path / "package", tmp_path / "site"
    shutil.copytree(EXAMPLE, package)
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site)]
    subprocess.run([*install, str(package)], check=True, timeout=400)
    assert art("spell", "colors", path=site).stdout.split()[:2] == ["der", "eulb"]
    shown = art("environments", "spelling", path=site)
    assert "spelling:animals" in shown.stdout, shown.stderr
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["sizes"] == [7, 3] and told["show"].startswith("cat -> ") and 0 <= told["reward"] <= 1
    assert "known lists are animals, colors" in told["refused"]
    rows = (tmp_path / "run" / "p" / "models" / "m" / "numbers.csv").read_text().splitlines()
    assert "3,val/right,0.5" in rows
    one_update, three_updates = told["penalties"]
    assert one_update == pytest.approx(0.0, abs=1e-6)  # on policy the ratio is 1
    assert three_updates > 1e-4
    assert "has no parameter 'beta'. Known: epsilon" in told["parameter"]
