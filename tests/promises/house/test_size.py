"""A reader gets lost in the longest file and the longest function, not in the average one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PYTHON_FILES = sorted(
    path
    for folder in ("src", "nano", "bench", "crosscheck", "examples")
    for path in (ROOT / folder).rglob("*.py")
    if "envs" not in path.parts  # other packages' environments
)
FILE_WALL = 600
FUNCTION_WALL = 60


def ids(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


@pytest.mark.parametrize("path", PYTHON_FILES, ids=ids(PYTHON_FILES))
def test_file_stays_within_the_wall(path: Path) -> None:
    lines = path.read_text().count("\n")
    assert lines <= FILE_WALL, f"{path} has {lines} lines; split it by idea"


@pytest.mark.parametrize("path", PYTHON_FILES, ids=ids(PYTHON_FILES))
def test_functions_stay_within_the_wall(path: Path) -> None:
    too_long = [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_WALL
    ]
    assert not too_long, f"{path}: {too_long}"
