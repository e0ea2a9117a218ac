"""Names say alone what they name: public classes are unique, functions are verbs that say what they do."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from figures import nodes, parse

SOURCE = Path(__file__).parents[3] / "src"
PUBLISHED_TWICE = {"TrainSFTConfig"}
"""`art.dev.TrainSFTConfig` and `art.types.TrainSFTConfig` are published names of two things."""
EACH_OF_ITS_FILE = {"Params"}
"""The parameters of a loss, beside the loss."""
SAY_NOTHING_ALONE = frozenset(
    "about acts afresh after ahead alike all alone among apart aside behind beside blamed came_of_it "
    "cautioned do elsewhere enough given gone hear heard hears held kept late looks lost mine more named "
    "notice of off one others ours plus rings said say says settle settled someone still taken tell tells "
    "together told trouble twice under unfit up whole why wishes within word written wrong".split()
)
"""Names of functions and methods, private ones included."""
NO_NAMES_OF_VALUES = frozenset("aside beside held sitting stage told".split())
"""Names of parameters and of attributes that are set, private ones included."""
NO_VARIABLES = frozenset({"held", "told"})


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
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.strip("_") in SAY_NOTHING_ALONE
    ]
    assert not found, found


def test_values_are_named_by_what_they_are() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno} {name}"
        for path in sorted(SOURCE.rglob("*.py"))
        for node in nodes(path)
        if (name := _name_of_value(node)).strip("_") in NO_NAMES_OF_VALUES
    ]
    assert not found, found


def _name_of_value(node: ast.AST) -> str:
    """The name of a parameter, or of an attribute or a variable that is set; else nothing."""
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id if node.id in NO_VARIABLES else ""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.attr
    return ""
