"""Makes src/art-stubs of the table of older import paths: python tests/promises/compat/make_stubs.py

Type checkers and editors do not ask Python's finders. They read this package beside `art` (PEP 561,
partial): one stub for each older path, which says what it leads to.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import art
from art.compat.import_paths import PATHS, Names

ROOT = Path(__file__).parents[3] / "src" / "art-stubs"
HEADER = "# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.\n"


def stubs() -> dict[str, str]:
    """Path below `art-stubs` -> content."""
    made = {"py.typed": "partial\n"}
    modules = dict(_modules())
    for name, content in modules.items():
        is_package = any(other.startswith(f"{name}.") for other in modules)
        file = "/".join(name.split(".")[1:]) + ("/__init__.pyi" if is_package else ".pyi")
        made[file] = HEADER + content
    return made


def _modules() -> Iterator[tuple[str, str]]:
    for name, entry in PATHS.items():
        if isinstance(entry, Names):
            yield name, _of_names(entry)
        else:
            yield from _of_alias(name, entry)


def _of_names(entry: Names) -> str:
    lines = []
    for name, place in sorted(entry.places.items(), key=lambda item: (item[1].partition(":")[0], item[0])):
        module, _, attribute = place.partition(":")
        lines.append(f"from {module} import {attribute} as {name}\n")
    if entry.unbuilt or entry.instead is not None:
        lines.insert(0, "from typing import Any\n\n")
    # A name that is imported under another one is exported by `__all__` alone.
    lines.append(f"\n__all__ = {json.dumps(sorted(entry.places))}\n\n")
    lines += [f"{name}: Any\n" for name in sorted(entry.unbuilt)]
    if entry.instead is not None:
        lines.append("def __getattr__(name: str) -> Any: ...\n")
    return "".join(lines)


def _of_alias(name: str, current: str) -> Iterator[tuple[str, str]]:
    yield name, f"from {current} import *\n"
    spec = find_spec(current)
    assert spec is not None, f"{name} leads to {current}, which is not there"
    for folder in spec.submodule_search_locations or ():
        for file in sorted(Path(folder).rglob("*.py")):
            below = [*file.relative_to(folder).with_suffix("").parts]
            if below[-1] == "__init__":
                below.pop()
            if below:
                yield ".".join([name, *below]), f"from {'.'.join([current, *below])} import *\n"


if __name__ == "__main__":
    assert Path(art.__file__).parent == ROOT.with_name("art"), art.__file__
    shutil.rmtree(ROOT, ignore_errors=True)
    for file, content in stubs().items():
        path = ROOT / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
