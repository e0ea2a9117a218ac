"""The notebooks under examples are what their sources say, and every cell of examples/notebooks runs.

The programs of the examples run in tests/promises/examples; here one of their notebooks does.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest

import art

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "notebooks"
NAMES = ("langgraph_agent", "mcp_server", "own_agent", "quick_start", "ruler", "sft")
EXAMPLES = tuple(sorted(path.stem for path in FOLDER.parent.glob("*/*.ipynb") if path.parent != FOLDER))
SECRET = re.compile(r"sk-[\w-]{8,}|test-key|Bearer |api[_-]?key['\"]?\s*[:=]\s*['\"]\w|[0-9a-f]{32}", re.I)
PLACE = re.compile(r"/(?:tmp|home|root|work|Users)/|127\.0\.0\.1|localhost")
"""What belongs to the machine that the notebook ran on."""


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_notebooks", FOLDER / "make_notebooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def source_of(name: str) -> Path:
    (found,) = [FOLDER / f"{name}.py"] if name in NAMES else FOLDER.parent.glob(f"*/{name}.py")
    return found


def read_committed(name: str) -> Any:
    return nbformat.read(source_of(name).with_suffix(".ipynb"), as_version=4)


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def texts(notebook: Any) -> str:
    """All outputs but pictures, as text."""
    shown = [
        {kind: value for kind, value in output.get("data", {}).items() if kind != "image/png"}
        | {"text": output.get("text", "")}
        for output in outputs(notebook)
    ]
    return json.dumps(shown)


@pytest.mark.slow  # jupytext asks for pandoc's version
def test_every_source_has_its_notebook(maker: ModuleType) -> None:
    made = [path.stem for path in maker.sources()]
    assert (tuple(made[: len(NAMES)]), tuple(sorted(made[len(NAMES) :]))) == (NAMES, EXAMPLES)
    assert tuple(sorted(path.stem for path in FOLDER.glob("*.ipynb"))) == NAMES


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES + EXAMPLES)
def test_a_committed_notebook_is_its_source_with_outputs(maker: ModuleType, name: str) -> None:
    made, committed = maker.read_source(source_of(name)), read_committed(name)
    remedy = f"run: python examples/notebooks/make_notebooks.py {name}"
    said = [[(cell.cell_type, cell.source) for cell in one.cells] for one in (committed, made)]
    assert said[0] == said[1], remedy
    counts = [cell.execution_count for cell in committed.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1)), remedy
    kinds = {kind for output in outputs(committed) for kind in output.get("data", {})}
    assert "image/png" in kinds, "its curve"
    assert not [output for output in outputs(committed) if output.output_type == "error"]


@pytest.mark.parametrize("name", NAMES + EXAMPLES)
def test_no_output_holds_a_key_or_a_place_of_the_machine(name: str) -> None:
    said = texts(read_committed(name))
    assert not SECRET.search(said) and not PLACE.search(said), said


def test_a_key_and_a_place_are_found() -> None:
    assert SECRET.search('{"api_key": "abc"}') and SECRET.search("sk-proj-0123456789")
    assert PLACE.search("/tmp/x") and not SECRET.search("step 3 of agent: 128 rollouts, loss 0.0596")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder whose server runs already: each notebook attaches to it, as a second program does."""
    folder = tmp_path_factory.mktemp("notebooks")
    with art.LocalBackend(path=folder / ".art") as backend:
        asyncio.run(backend.list_models())
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs(maker: ModuleType, name: str, folder: Path) -> None:
    """One training step, in a kernel of its own."""
    ran = maker.execute(maker.read_source(FOLDER / f"{name}.py"), folder, steps=1)
    (model,) = re.findall(
        r'TrainableModel\(name="(\w+)", project="notebooks"', "".join(cell.source for cell in ran.cells)
    )
    assert f"step 1 of {model}: " in texts(ran)
    assert (folder / ".art" / "notebooks" / "models" / model / "checkpoints" / "0001").is_dir()
    assert any("image/png" in output.get("data", {}) for output in outputs(ran))
    assert not SECRET.search(texts(ran))


@pytest.mark.slow
def test_a_notebook_of_an_example_runs(maker: ModuleType, tmp_path: Path) -> None:
    ran = maker.execute(maker.read_source(source_of("yes_no_maybe")), tmp_path, arguments=["--steps", "1"])
    assert "step 1: mean reward" in texts(ran)
    assert any("image/png" in output.get("data", {}) for output in outputs(ran))
