"""The worked examples in the docstrings of the library are true."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import art

SOURCE = Path(art.__file__).parents[1]
MODULES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for tree in ("art", "art_extensions")
    for path in (SOURCE / tree).rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried and not failed
