"""Make the notebooks of their sources, with their outputs.

    python examples/notebooks/make_notebooks.py            all of them: half an hour on two cores
    python examples/notebooks/make_notebooks.py sft codenames

A source is a Python file in the percent format of Jupytext: it can be read, compared and edited as text. It
is a file of this folder, or the program of an example (`examples/codenames/codenames.py`), whose last cell,
which reads the command line, becomes one that runs it, with the arguments `notebook` of `example.toml`, and
one that draws its curve. Each notebook
runs in a folder and a kernel of its own.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parent
SECONDS = 600
"""The deadline of one cell."""
_STEPS = re.compile(r"^STEPS = \d+$", re.M)


COMMAND_LINE = 'if __name__ == "__main__":\n    art.run(main(read_options()))'
"""The last cell of an example's program."""
LINK = "see the runs in a browser: "
RUN = "await main(read_options({arguments}))"
CURVE = """import polars
from art.utils.benchmarking import load_trajectories, training_progress_chart

rows = await load_trajectories("{project}")
_ = training_progress_chart(rows.filter(polars.col("split") == "val"), "{metric}")"""


def sources() -> list[Path]:
    """Returns the sources of all notebooks: this folder's, then the programs of the examples."""
    here = sorted(path for path in FOLDER.glob("*.py") if path != Path(__file__))
    programs = [
        folder / variant.get("file", f"{folder.name}.py")
        for folder in sorted(path.parent for path in FOLDER.parent.glob("*/example.toml"))
        for variant in [{}, *read_example(folder).get("variants", {}).values()]
        if read_example(folder).get("notebook") is not False
    ]
    return here + list(dict.fromkeys(programs))


def read_example(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "example.toml").read_text(encoding="utf-8"))


def replace_command_line(notebook: NotebookNode, program: Path) -> None:
    """Puts two cells for the last: the run, and the curve of its evaluations."""
    last = notebook.cells.pop()
    if last.source != COMMAND_LINE:
        raise ValueError(f"{program.name} does not end with the cell\n{COMMAND_LINE}")
    example = read_example(program.parent)
    curve = CURVE.format(project=program.stem, metric=example["metric"])
    run = RUN.format(arguments=example.get("notebook", []))
    notebook.cells += [nbformat.v4.new_code_cell(source) for source in (run, curve)]


def read_source(path: Path) -> NotebookNode:
    """Returns a source as a notebook without outputs, the same each time."""
    notebook = jupytext.read(path)
    if path.parent != FOLDER:
        replace_command_line(notebook, path)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata.clear()
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return nbformat.from_dict(notebook)


def leave_out_links(notebook: NotebookNode) -> None:
    """Takes the line with the link to the run's pages out of the outputs: it is of this machine, for once."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            for where, kind in ((output, "text"), (output.get("data", {}), "text/plain")):
                if LINK in where.get(kind, ""):
                    lines = where[kind].splitlines(keepends=True)
                    where[kind] = "".join(line for line in lines if LINK not in line)


def execute(
    notebook: NotebookNode, folder: Path, *, steps: int | None = None, arguments: Sequence[str] | None = None
) -> NotebookNode:
    """Runs a notebook in a folder and returns it with its outputs.

    steps: training steps in place of the notebook's own; arguments: of an example's program. Raises
    CellExecutionError when a cell fails.
    """
    if arguments is not None:
        for cell in notebook.cells:
            if cell.source.startswith(RUN.partition("{")[0]):
                cell.source = RUN.format(arguments=list(arguments))
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
    leave_out_links(notebook)
    notebook.metadata.pop("language_info", None)  # the versions of the machine that it ran on
    return notebook


def main(names: list[str]) -> None:
    for path in sources():
        if names and path.stem not in names:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            if path.parent != FOLDER:  # what the program imports
                folder = Path(shutil.copytree(path.parent, folder / path.parent.name))
            notebook = execute(read_source(path), folder)
        nbformat.write(notebook, path.with_suffix(".ipynb"))
        print(f"wrote {path.with_suffix('.ipynb').name}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
