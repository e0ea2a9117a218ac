"""A method of a class whose code is in an extension, loaded when it is called."""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from types import MethodType
from typing import Any


class DeferredMethod:
    """Stands in a class for a function that is loaded when the name is used.

    place: "module:name"; the function's first parameter is the object.
    """

    def __init__(self, place: str) -> None:
        self._place = place

    @cached_property
    def _function(self) -> Any:
        module, _, name = self._place.partition(":")
        return getattr(import_module(module), name)

    def __get__(self, instance: object | None, owner: type) -> Any:
        return self._function if instance is None else MethodType(self._function, instance)
