"""Names say alone what they name: public classes are unique, functions are verbs that say what they do."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from figures import nodes, parse

SOURCE = Path(__file__).parents[3] / "src" / "art"
PUBLISHED_TWICE = {"TrainSFTConfig"}
"""`art.dev.TrainSFTConfig` and `art.types.TrainSFTConfig` are published names of two things."""
EACH_OF_ITS_FILE = {"Params"}
"""The parameters of a loss, beside the loss."""
SAY_NOTHING_ALONE = {"told", "tell", "whole", "settle", "held", "someone", "came_of_it"}


def test_public_classes_have_unique_names() -> None:
    places = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path.relative_to(SOURCE).as_posix())
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not {
        name: found for name, found in twice.items() if name not in PUBLISHED_TWICE | EACH_OF_ITS_FILE
    }


def test_functions_are_verbs_that_say_what_they_do() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}"
        for path in sorted(SOURCE.rglob("*.py"))
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in SAY_NOTHING_ALONE
    ]
    assert not found, found
