"""A reader gets lost in the longest file and the longest function, not in the average one."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3]
PYTHON_FILES = sorted(
    path
    for folder in ("src", "nano", "bench", "crosscheck", "examples")
    for path in (ROOT / folder).rglob("*.py")
    if "envs" not in path.parts  # other packages' environments
)
FILE_WALL = 600
FUNCTION_WALL = 60


def test_files_stay_within_the_wall() -> None:
    lines = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in PYTHON_FILES}
    assert not {path: count for path, count in lines.items() if count > FILE_WALL}, "split them by idea"


def test_functions_stay_within_the_wall() -> None:
    too_long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for path in PYTHON_FILES
        for node in ast.walk(ast.parse(path.read_text()))  # kept for nobody: these are all files
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_WALL
    ]
    assert not too_long, too_long
