"""The worked examples in the docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

from art import batch as samples

MODULES = [module.name for module in pkgutil.walk_packages(samples.__path__, f"{samples.__name__}.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples() -> None:
    counts = [doctest.testmod(importlib.import_module(name)).attempted for name in MODULES]
    assert sum(counts) >= 20
