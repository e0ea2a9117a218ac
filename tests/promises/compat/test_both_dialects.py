"""Each row of the table of both dialects in docs/guides/migrating.md names a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import art

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "guides" / "migrating.md"
HEADER = "| releases 0.3 to 0.5.18 | releases 0.5.19 to 0.5.23 | here | test |"


def rows() -> list[list[str]]:
    lines = PAGE.read_text().partition(HEADER)[2].splitlines()[2:]
    table = []
    for line in lines:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return table


def test_the_table_has_its_rows() -> None:
    assert len(rows()) > 25 and {len(row) for row in rows()} == {4}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[1][:60])
def test_the_row_has_a_test_and_its_names_exist(row: list[str]) -> None:
    file, _, name = row[3].strip("`").partition("::")
    tree = ast.parse((ROOT / file).read_text())
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert (name in functions) if name else any(one.startswith("test_") for one in functions)
    for path in re.findall(r"\bart((?:\.[A-Za-z_]+)+)", " ".join(row[:2])):
        value: object = art
        for part in path.strip(".").split("."):
            value = getattr(value, part)
