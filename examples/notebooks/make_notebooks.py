"""Make the notebooks of their sources, with their outputs.

    python examples/notebooks/make_notebooks.py            all of them: some minutes on two cores
    python examples/notebooks/make_notebooks.py sft mcp_server

A source is a Python file in the percent format of Jupytext: it can be read, compared and edited as text. Each
notebook runs in a folder and a kernel of its own.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parent
SECONDS = 600
"""The deadline of one cell."""
_STEPS = re.compile(r"^STEPS = \d+$", re.M)


def sources() -> list[Path]:
    """Returns the sources of all notebooks."""
    return sorted(path for path in FOLDER.glob("*.py") if path != Path(__file__))


def read_source(path: Path) -> NotebookNode:
    """Returns a source as a notebook without outputs, the same each time."""
    notebook = jupytext.read(path)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata.clear()
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return nbformat.from_dict(notebook)


def execute(notebook: NotebookNode, folder: Path, *, steps: int | None = None) -> NotebookNode:
    """Runs a notebook in a folder and returns it with its outputs.

    steps: training steps in place of the notebook's own. Raises CellExecutionError when a cell fails.
    """
    if steps is not None:
        first = next(cell for cell in notebook.cells if _STEPS.search(cell.source))
        first.source = _STEPS.sub(f"STEPS = {steps}", first.source)
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    notebook.metadata.pop("language_info", None)  # the versions of the machine that it ran on
    return notebook


def main(names: list[str]) -> None:
    for path in sources():
        if names and path.stem not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(read_source(path), Path(folder))
        nbformat.write(notebook, path.with_suffix(".ipynb"))
        print(f"wrote {path.with_suffix('.ipynb').name}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
