"""A name says alone what it names: no two public classes share one."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[3] / "src" / "art"
PUBLISHED_TWICE = {"TrainSFTConfig"}
"""`art.dev.TrainSFTConfig` and `art.types.TrainSFTConfig` are published names of two things."""
EACH_OF_ITS_FILE = {"Params"}
"""The parameters of a loss, beside the loss."""


def test_public_classes_have_unique_names() -> None:
    places = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path.relative_to(SOURCE).as_posix())
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not {
        name: found for name, found in twice.items() if name not in PUBLISHED_TWICE | EACH_OF_ITS_FILE
    }
