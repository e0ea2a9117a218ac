"""How long the adapter of each kind of environment is: counted from the source, for the table of the page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from art.extensions import ENVIRONMENT, extension_points
from library_programs import ROOT

SOURCE = ROOT / "src"
WORKER = re.compile(r'with_name\("(\w+\.py)"\)')
"""A program that is run by its path, beside the module that runs it."""


def adapter_lines(kind: str) -> int:
    """Returns the lines of the module of a kind's adapter, and of the modules that no other adapter uses."""
    modules = {name: _file_of(point.module) for name, point in extension_points(ENVIRONMENT).items()}
    others = {file for name, one in modules.items() if name != kind for file in _used_by(one)}
    own = {modules[kind], *(_used_by(modules[kind]) - others)}
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in own)


@lru_cache(maxsize=64)
def _used_by(module: Path) -> frozenset[Path]:
    """Returns a module of the extensions and the others that it uses, in a process of their own, too."""
    found, waiting = {module}, [module]
    while waiting:
        new = {*_uses(waiting.pop())} - found
        found |= new
        waiting += new
    return frozenset(found)


def _uses(module: Path) -> Iterator[Path]:
    text = module.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
        for name in names:
            if name.startswith("art_extensions.") and _file_of(name).is_file():
                yield _file_of(name)
    for name in WORKER.findall(text):
        yield module.with_name(name)


def _file_of(module: str) -> Path:
    return SOURCE.joinpath(*module.split(".")).with_suffix(".py")
