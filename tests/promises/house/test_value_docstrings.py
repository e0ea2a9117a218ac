"""The string below a field or a constant says what the value is: its first word is not a preposition."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from figures import SOURCE, TREES, nodes

NO_SUBJECT = frozenset(
    (
        "After Among As Before Behind Beside Between By For From In Not Of So "
        "Told Under Until Up With Without"
    ).split()
)


def value_docstrings(path: Path) -> Iterator[ast.Constant]:
    for node in nodes(path):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for assigned, after in pairwise(body):
            if isinstance(assigned, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr):
                text = after.value
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    yield text


@pytest.mark.slow
def test_a_value_is_said_to_be_something() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{text.lineno} {str(text.value).strip()[:60]}"
        for tree in TREES
        for path in sorted((SOURCE / tree).rglob("*.py"))
        for text in value_docstrings(path)
        if str(text.value).split()[0] in NO_SUBJECT
    ]
    assert not found, "\n".join(found)
