"""`art environments` lists what the registry finds, what can be named of each kind, and what is missing."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from art.cli.main import app
from art.environments.adapters.registry import known_environments
from art.errors import EXTRAS, is_installed
from art.extensions import GROUP
from art_extensions.environments.commands import list_environments, list_names
from library_programs import PROGRAMS, ROOT, needs, python_of, told_by

LIBRARIES, BFCL, NEMO = ".venv-environments", ".venv-bfcl", ".venv-nemo-gym"
OLDER, TASKSETS, OPENENV = ".venv-verifiers", ".venv-verifiers-tasksets", ".venv-openenv"
PROGRAM = "installed_names.py"
ART = "from art.cli import app; app()"


def art(*words: str, python: Path = Path(sys.executable), path: Path | str = "", here: Path = ROOT) -> Any:
    """Returns what `art environments --json` prints. path: where packages are looked for first."""
    done = subprocess.run(
        [str(python), "-W", "ignore", "-c", ART, "environments", *words, "--json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(path), str(ROOT / "src")))},
        cwd=here,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_it_lists_what_the_registry_knows() -> None:
    listed = list_environments()
    assert [one.name for one in listed] == known_environments()
    assert all(one.what and not one.what.endswith(":") for one in listed)


def test_an_extra_that_is_missing_is_named() -> None:
    for one in list_environments():
        if one.extra is not None:
            assert one.installed == all(is_installed(module) for module in EXTRAS[one.extra])
    done = CliRunner().invoke(app, ["environments"], env={"COLUMNS": "160"})
    assert done.exit_code == 0 and "tic-tac-toe" in done.output and "harbor:NAME" in done.output
    missing = [one.extra for one in list_environments() if not one.installed]
    assert all(f"the extra {name}" in done.output for name in missing)


def test_as_json_it_is_the_same() -> None:
    done = CliRunner().invoke(app, ["environments", "--json"])
    assert [one["name"] for one in json.loads(done.output)] == known_environments()


def test_a_library_has_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    from art_extensions.environments.reasoning_gym import ReasoningGymEnvironment

    monkeypatch.setattr(ReasoningGymEnvironment, "LIBRARY", "pydantic")  # one that is installed here
    (row,) = [one for one in list_environments() if one.name == "reasoning-gym:NAME"]
    assert row.version == version("pydantic")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["reasoning-gim"], "unknown kind 'reasoning-gim': did you mean 'reasoning-gym'"),
        (["mail", "--environment-option", "a=1"], "the names of 'mail' do not depend on the option 'a'"),
        (["harbor", "--environment-option", "a=1"], "on the option 'a'; on: registry"),
        (["--environment-option", "a=1"], "give KIND too"),
    ],
)
def test_what_is_no_kind_or_no_option_of_it_is_refused(words: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["environments", *words])
    assert done.exit_code == 1 and said in done.output


def test_a_kind_without_names_says_so() -> None:
    (row,) = list_names("python", {})
    assert row.name == "python:MODULE:NAME" and "does not list" in row.needs
    assert [one.name for one in list_names("mail", {})] == ["mail"]


def test_the_names_of_harbor_are_folders_here_and_the_datasets_of_a_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("sets/words/hello", "sets/words/bye", "other/one"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "task.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    assert [one.name for one in list_names("harbor", {})] == ["harbor:other", "harbor:sets/words"]
    registry = tmp_path / "registry.json"
    registry.write_text(json.dumps([{"name": "words", "version": "1.0", "tasks": []}]))
    words = ["environments", "harbor", "--environment-option", f"registry={registry}", "--json"]
    rows = json.loads(CliRunner().invoke(app, words).output)
    assert rows == [{"name": "harbor:words@1.0", "needs": "registry=FILE, as here"}]
    registry.write_text("{")
    (row,) = list_names("harbor", {"registry": str(registry)})
    assert "is no JSON" in row.needs


@pytest.mark.slow
def test_a_library_that_cannot_be_imported_is_a_row_that_says_so(tmp_path: Path) -> None:
    package = tmp_path / "reasoning_gym"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('built for another Python')\n")
    (row,) = art("reasoning-gym", path=tmp_path)
    assert row["name"] == "reasoning-gym:NAME"
    assert "cannot be imported: RuntimeError: built for another Python" in row["needs"]


@pytest.mark.slow
def test_an_adapter_that_cannot_be_loaded_is_a_row_among_the_others(tmp_path: Path) -> None:
    (tmp_path / "broken_world.py").write_text("raise OSError('no licence')\n")
    metadata = tmp_path / "broken_world-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-world\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{GROUP}]\nenvironment.broken = broken_world:World\n")
    rows = {one["name"]: one for one in art(path=tmp_path)}
    assert rows.keys() >= {*known_environments(), "broken:NAME"}
    assert rows["broken:NAME"]["problem"] == "cannot be loaded: OSError: no licence"
    assert not rows["broken:NAME"]["installed"]
    assert art("broken", path=tmp_path)[0]["needs"] == "cannot be loaded: OSError: no licence"


@pytest.mark.slow
def test_a_missing_library_is_named_with_what_installs_it() -> None:
    if is_installed("textarena"):
        pytest.skip("textarena is installed here")
    (row,) = list_names("textarena", {})
    assert row.needs.startswith("the extra textarena: pip install")


@needs(LIBRARIES)
@pytest.mark.slow
def test_the_names_of_libraries_are_those_that_they_have() -> None:
    words = ("reasoning-gym=letter_counting", "textarena=TicTacToe-v0", "gymnasium", "skyrl-gym", "tau2")
    told = told_by(LIBRARIES, PROGRAM, *words, "agentdojo", "inspect")
    assert told["imported"] == []  # before a kind is asked for
    assert {"gymnasium", "inspect", "reasoning-gym", "skyrl-gym", "tau2", "textarena"} <= {*told["versions"]}
    assert told["reasoning-gym"]["reasoning-gym:letter_counting"] == ""
    assert len(told["reasoning-gym"]) > 100 and told["reasoning-gym scenarios"] == 500
    assert "textarena:TicTacToe-v0" in told["textarena"] and told["textarena scenarios"] == 1000
    # Its own show numbers: CartPole-v1 is not among them.
    assert [*told["gymnasium"]] == ["gymnasium:Guess-v0"]
    assert told["skyrl-gym"]["skyrl-gym:gsm8k"] == "data=FILE, a dataset of SkyRL"
    assert [*told["tau2"]] == ["tau2:airline", "tau2:retail", "tau2:telecom"]
    assert "agentdojo:slack" in told["agentdojo"]


@needs(LIBRARIES)
@pytest.mark.slow
def test_the_tasks_of_files_here_are_names_beside_a_package_that_cannot_be_imported() -> None:
    """Here inspect-evals is installed without the libraries of its tasks."""
    rows = {one["name"]: one["needs"] for one in art("inspect", python=python_of(LIBRARIES), here=PROGRAMS)}
    assert rows["inspect:inspect_tasks.py@say"] == ""
    assert rows["inspect:inspect_evals/TASK"].startswith("cannot be imported: ModuleNotFoundError")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "name", "others"),
    [
        pytest.param(OLDER, "play_hub", [], marks=needs(OLDER)),
        pytest.param(TASKSETS, "say_words", ["harbor", "textarena", "two_agents"], marks=needs(TASKSETS)),
    ],
)
def test_the_names_of_verifiers_are_modules_here_and_tasksets_of_the_package(
    place: str, name: str, others: list[str]
) -> None:
    python = python_of(place)
    rows = {one["name"]: one["needs"] for one in art("verifiers", python=python, here=PROGRAMS)}
    assert rows[f"verifiers:{name}"] == "" and {f"verifiers:{one}" for one in others} <= {*rows}
    # Programs that only use the library are none.
    assert not {"verifiers:verifiers_rollouts", "verifiers:taskset_rollouts"} & {*rows}
    assert told_by(place, PROGRAM, f"verifiers={name}")["verifiers scenarios"] > 0


@needs(OLDER)
@pytest.mark.slow
def test_an_installed_package_that_requires_verifiers_is_a_name(tmp_path: Path) -> None:
    for package, first in (("vf_rhyme", "from .world import load_environment\n"), ("vf_trainer", "")):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(first)
        metadata = tmp_path / f"{package}-1.0.dist-info"
        metadata.mkdir()
        lines = f"Metadata-Version: 2.1\nName: {package.replace('_', '-')}\nVersion: 1.0\n"
        (metadata / "METADATA").write_text(lines + "Requires-Dist: verifiers>=0.1.10\n")
    rows = art("verifiers", python=python_of(OLDER), path=tmp_path, here=tmp_path.parent)
    assert [one["name"] for one in rows] == ["verifiers:vf_rhyme"]


@needs(OPENENV)
@pytest.mark.slow
def test_openenv_says_which_packages_have_a_server(tmp_path: Path) -> None:
    metadata = tmp_path / "openenv_echo_env-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: openenv-echo-env\nVersion: 1.0\n")
    (row,) = art("openenv", python=python_of(OPENENV), path=tmp_path)
    assert row["name"] == "openenv:http://HOST:PORT" and "uvicorn echo_env.server.app:app" in row["needs"]


@needs(BFCL)
@pytest.mark.slow
def test_the_names_of_bfcl_are_categories_that_can_be_trained_on() -> None:
    told = told_by(BFCL, PROGRAM, "bfcl=simple_python")
    assert {"bfcl:live", "bfcl:simple_python", "bfcl:multi_turn_base"} <= {*told["bfcl"]}
    assert "bfcl:multi_turn_miss_func" not in told["bfcl"] and told["bfcl scenarios"] == 300


@needs(NEMO)
@pytest.mark.slow
def test_the_names_of_nemo_gym_are_the_servers_of_an_interpreter() -> None:
    rows = {one.name: one.needs for one in list_names("nemo-gym", {"python": str(python_of(NEMO))})}
    assert rows["nemo-gym:example_multi_turn_gymnasium"] == "python=, as here" and len(rows) > 50
    (row,) = list_names("nemo-gym", {})
    assert 'give python="gym/bin/python"' in row.needs
