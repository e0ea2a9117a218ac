"""Older import paths: what their modules are, and that type checkers follow them, too."""

from __future__ import annotations

import importlib
import importlib.util
import runpy
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from make_stubs import ROOT, stubs

import art
from art.compat import finder
from art.compat.finder import Unbuilt
from art.compat.import_paths import PATHS, Names, names

SOURCE = Path(art.__file__).parent
PLACES = sorted(
    (f"{path}.{name}", place)
    for path, entry in PATHS.items()
    if isinstance(entry, Names)
    for name, place in entry.places.items()
)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A table of its own; what was imported through it is forgotten."""
    before = set(sys.modules)
    mine: dict[str, Any] = {}
    monkeypatch.setattr(finder, "PATHS", mine)
    yield mine
    for name in [name for name in set(sys.modules) - before if name.startswith("art.former")]:
        del sys.modules[name]
    vars(art).pop("former", None)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with a submodule and a `__main__`, somewhere else."""
    folder = tmp_path / "latter_home"
    folder.mkdir()
    folder.joinpath("__init__.py").write_text("VALUE = object()\n")
    folder.joinpath("part.py").write_text("class Thing: ...\n")
    folder.joinpath("__main__.py").write_text("RESULT = __name__, __package__\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "latter_home"


@pytest.mark.parametrize("path", PATHS)
def test_no_file_has_an_older_path(path: str) -> None:
    file = SOURCE.parent / Path(*path.split("."))
    assert not file.with_suffix(".py").exists() and not list(file.rglob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_what_is_above_an_older_path_is_there(path: str) -> None:
    assert importlib.util.find_spec(path.rpartition(".")[0]) is not None


@pytest.mark.slow
@pytest.mark.parametrize(("path", "place"), PLACES)
def test_a_name_is_the_very_one_of_its_place(path: str, place: str) -> None:
    module, _, name = path.rpartition(".")
    home, _, attribute = place.partition(":")
    older = getattr(importlib.import_module(module), name)
    today = getattr(importlib.import_module(home), attribute)
    if isinstance(older, Unbuilt):
        assert repr(older) == repr(today)
    else:
        assert older is today and home not in PATHS, "it leads to where it is, at once"


def test_a_whole_package_under_another_name_is_the_same_modules(table: dict[str, Any], package: str) -> None:
    table["art.former"] = package
    older, part = importlib.import_module("art.former"), importlib.import_module("art.former.part")
    assert older is sys.modules["latter_home"] and part is sys.modules["latter_home.part"]
    assert older.__spec__ is not None and older.__spec__.name == package, "it keeps its own spec"
    assert part.Thing is importlib.import_module(f"{package}.part").Thing
    with pytest.raises(ModuleNotFoundError, match=r"art\.former\.nothing"):
        importlib.import_module("art.former.nothing")


def test_a_package_under_another_name_can_be_run(table: dict[str, Any], package: str) -> None:
    table["art.former"] = package
    result = runpy.run_module("art.former", run_name="__main__", alter_sys=True)["RESULT"]
    assert result == ("__main__", "art.former")


@pytest.mark.slow
@pytest.mark.parametrize("module", ["art.testing", "art.mcp.servers.weather", "art.mcp.servers.library"])
def test_a_program_starts_under_its_older_name(module: str) -> None:
    command = [sys.executable, "-m", module, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.startswith(f"usage: python -m {module} ")


def test_a_function_wins_over_the_module_of_its_name(table: dict[str, Any]) -> None:
    table["art.former"] = names("json:dumps", unbuilt={"gone": "use json"})
    table["art.former.dumps"] = names("json:dumps")
    table["art.former.gone"] = names(instead="use json")
    table["art.former.below"] = names("json:loads")
    module, gone = (importlib.import_module(f"art.former.{name}") for name in ("dumps", "gone"))
    from art import former  # type: ignore[attr-defined]

    assert former.dumps is module.dumps and not isinstance(former.gone, types.ModuleType)
    assert isinstance(gone, types.ModuleType) and isinstance(former.below, types.ModuleType)
    assert module([1]) == "[1]", "where Python binds the module in the function's place"
    assert not callable(former)
    assert dir(former)[-2:] == ["dumps", "gone"] and former.__all__ == ["dumps"]
    with pytest.raises(AttributeError, match=r"no attribute 'load'; it has dumps, gone"):
        _ = former.load


def test_installing_twice_changes_nothing() -> None:
    before = list(sys.meta_path)
    finder.install()
    assert sys.meta_path == before


def test_the_stubs_are_those_of_the_table() -> None:
    there = {str(path.relative_to(ROOT)): path.read_text() for path in ROOT.rglob("*") if path.is_file()}
    assert there == stubs(), "run python tests/promises/compat/make_stubs.py"


PROGRAM = """
from collections.abc import Iterable
from typing import Any

import art
import openai
import art.dev
from art.metrics_taxonomy import average_metric_samples
from art.megatron import MegatronBackend
from art.utils import iterate_dataset, retry
from art.utils.benchmarking.charts.training_progress_chart import training_progress_chart
from art.utils.network import find_free_tcp_port

reveal_type(art.dev.PeftArgs(r=8)["r"])
reveal_type(art.auto_trajectory(required=True))
reveal_type(average_metric_samples([{}]))
reveal_type(MegatronBackend)
reveal_type(next(iter(iterate_dataset(["a"]))).items)
reveal_type(find_free_tcp_port())

Trainable = art.TrainableModel[Any, Any]


class OwnBackend:
    async def register(self, model: art.Model[Any, Any]) -> None: ...
    async def train(
        self, model: Trainable, trajectory_groups: Iterable[art.TrajectoryGroup], **options: Any
    ) -> art.TrainResult:
        raise NotImplementedError
    async def train_sft(
        self,
        model: Trainable,
        trajectories: Iterable[art.Trajectory],
        config: art.TrainSFTConfig | None = None,
        *,
        verbose: bool = False,
    ) -> art.TrainResult:
        raise NotImplementedError
    async def get_step(self, model: Trainable) -> int:
        return 0
    async def delete_checkpoints(self, model: Trainable, keep_steps: Iterable[int]) -> list[int]:
        return []
    def openai_client(self, model: Trainable) -> openai.AsyncOpenAI:
        raise NotImplementedError
    async def close(self) -> None: ...


backend: art.Backend = OwnBackend()
find_free_tcp_port(host=1)
from art.utils import nothing_of_this_name
"""
CONFIGURATION = """
[mypy]
strict = True
[mypy-openai.*,pydantic.*,numpy.*,torch.*,transformers.*]
follow_imports = skip
"""
"""Two thirds of the time would be those libraries' own."""
REVEALED = ["int", "Trajectory", "dict[str, float]", "Any", "list[str]", "int"]


@pytest.mark.slow
def test_a_type_checker_follows_older_paths(tmp_path: Path) -> None:
    tmp_path.joinpath("program.py").write_text(PROGRAM)
    tmp_path.joinpath("mypy.ini").write_text(CONFIGURATION)
    command = [sys.executable, "-m", "mypy", "--python-executable", sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    lines = [line.partition(": ")[2] for line in done.stdout.splitlines()]
    kinds = [line.partition('"')[2].rstrip('"').rpartition("trajectories.")[2] for line in lines]
    assert kinds[: len(REVEALED)] == REVEALED, done.stdout + done.stderr
    errors = [line for line in lines if line.startswith("error")]
    assert len(errors) == 2, done.stdout
    assert '"host"' in errors[0] and '"nothing_of_this_name"' in errors[1]
