"""What is shown of each kind of environment: rows that the contract test writes, and the table of the page.

    PYTHONPATH=.:tests python tests/contracts/environment_matrix.py

The command runs the contract, then writes the rows and the page. With --page it writes the page alone.

The rows are in `environment_matrix.json`. A kind whose library is missing here keeps its row. Without the
command, the contract test compares the rows with what it sees.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adapter_lines import adapter_lines
from bench.marked_pages import replace_between_marks
from environment_cases import CASES, Case

from art.extensions import ENVIRONMENT, extension_points
from library_programs import ROOT

ROWS = Path(__file__).with_name("environment_matrix.json")
PAGE = ROOT / "docs" / "guides" / "environments.md"
CURVES = ROOT / "docs" / "assets" / "environments.json"
CURVES_SECTION = "../internals/benchmarks.md#environments-by-name-benchlearningenvironmentspy"
REAL_MODELS = {"art/smollm2": "SmolLM2-135M "}
"""The models of curves that others have trained, as the table calls them."""
MARK, WRITE = "matrix", "ART_WRITE_MATRIX"
NOT_SHOWN = "not shown"
TOLERANCE = 1e-9


def row_of(case: Case, first: Mapping[str, Any], second: Mapping[str, Any], *, exact: bool) -> dict[str, Any]:
    """Returns the row of a kind. first, second: what its case did in two processes. exact: whether each
    sampled token was one of a rollout.
    """
    begun, resumed = first.get("learned", {}), second.get("learned", {})
    played = [one for player in ("right", "wrong") for one in first.get(player, ())]
    compared = [one for one in played if one.get("library") is not None]
    equal = [
        isinstance(one["library"], float) and abs(one["library"] - one["reward"]) < TOLERANCE
        for one in compared
    ]
    return {
        "runs": begun.get("steps") == [1],
        "resumes": resumed.get("steps") == [1, 2],
        "tokens": exact,
        "reward": all(equal) if equal else case.compared_by or None,
    }


def read_rows() -> dict[str, dict[str, Any]]:
    """Returns kind -> its row, in the order of the cases."""
    if not ROWS.exists():
        return {}
    found: dict[str, dict[str, Any]] = json.loads(ROWS.read_text(encoding="utf-8"))
    return found


def write_row(kind: str, row: Mapping[str, Any]) -> None:
    rows = {**read_rows(), kind: dict(row)}
    order = [case.kind for case in CASES if case.kind]
    ordered = {one: rows[one] for one in sorted(rows, key=order.index)}
    ROWS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


def table() -> str:
    """Returns the table of the page."""
    curves = json.loads(CURVES.read_text(encoding="utf-8"))
    lines = [
        "| kind | lines | runs by name | resumes | tokens exact | the library's own reward "
        "| learning curve |",
        "|---|--:|---|---|---|---|---|",
    ]
    cases = {case.kind: case for case in CASES}
    for kind, row in read_rows().items():
        marks = [_mark(row[column]) for column in ("runs", "resumes", "tokens")]
        cells = [
            f"`{kind}`",
            _lines(cases[kind]),
            *marks,
            _reward(cases[kind], row["reward"]),
            _curve(cases[kind], curves),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _mark(shown: bool) -> str:
    return "yes" if shown else NOT_SHOWN


def _lines(case: Case) -> str:
    kind = case.name.partition(":")[0]
    return str(adapter_lines(kind)) if kind in extension_points(ENVIRONMENT) else "no adapter"


def _reward(case: Case, shown: bool | str | None) -> str:
    if case.is_own:
        return "no library"
    if isinstance(shown, str):
        return f"yes, `{Path(shown.partition('::')[0]).name}`"
    return _mark(bool(shown))


def _is_apart(curve: Mapping[str, Any]) -> bool:
    """Whether the 95 % intervals before and after do not overlap."""
    return bool(curve["before"]["interval"][1] < curve["after"]["interval"][0])


def _curve(case: Case, curves: Mapping[str, Any]) -> str:
    """Returns the shares of a case's jobs that have been measured, and learned."""
    shown = []
    for job in [one for one in case.curves if one in curves and _is_apart(curves[one])]:
        before, after = (curves[job][side]["score"] for side in ("before", "after"))
        model = REAL_MODELS.get(curves[job].get("base_model"), "")
        shown.append(f"{model}[{before:.2f} to {after:.2f}]({CURVES_SECTION})")
    return "; ".join(shown) or NOT_SHOWN


def main() -> int:
    contract = Path(__file__).with_name("test_environments.py")
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-q", "-k", "matrix", str(contract)]
    status = 0
    if "--page" not in sys.argv:
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, WRITE: "1"}, check=False)
        status = done.returncode
    replace_between_marks(PAGE, table(), name=MARK)
    return status


if __name__ == "__main__":
    sys.exit(main())
