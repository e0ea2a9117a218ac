"""The targets by their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType

import file_targets
import reply_targets
import request_targets
from places import Place

Target = Callable[[bytes, Place], object]


def _targets_of(module: ModuleType) -> dict[str, Target]:
    """Returns the functions of a module that take an input and a place."""
    return {
        name: one
        for name, one in vars(module).items()
        if inspect.isfunction(one)
        and one.__module__ == module.__name__
        and list(inspect.signature(one).parameters) == ["content", "place"]
    }


def targets() -> dict[str, Target]:
    """Returns all of them."""
    modules = (file_targets, reply_targets, request_targets)
    return {name: one for module in modules for name, one in _targets_of(module).items()}
