"""The worked examples in the docstrings are true."""

from __future__ import annotations

import doctest
import importlib

import pytest

ROOMS = ["advantages", "batch", "encode", "entries", "rows", "sheet", "tree", "types"]


@pytest.mark.parametrize("name", ROOMS)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"art.samples.{name}")).failed == 0


def test_there_are_examples() -> None:
    counts = [doctest.testmod(importlib.import_module(f"art.samples.{name}")).attempted for name in ROOMS]
    assert sum(counts) >= 20
