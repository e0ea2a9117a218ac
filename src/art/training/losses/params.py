"""Parameters of a loss: the fields of its dataclass, each with values that its annotation allows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from types import MappingProxyType, NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from art.errors import ConfigurationError

_WORDS: Mapping[type, str] = MappingProxyType(
    {float: "a finite number of at least 0", bool: "True or False", NoneType: "None"}
)


T = TypeVar("T")


def bind_params(loss: str, kind: type[T], given: Mapping[str, Any]) -> T:
    """An instance of the frozen dataclass `kind`, whose fields are floats, bools or may be None.

    Raises ConfigurationError for unknown names, listing the known ones, and for values that do not fit.
    """
    hints = get_type_hints(kind)
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]  # any dataclass
    for name, value in given.items():
        if name not in known:
            raise ConfigurationError(
                f"Loss {loss!r} has no parameter {name!r}. Known: {', '.join(known) or 'none at all'}."
            )
        allowed = get_args(hints[name]) or (hints[name],)
        if not _fits(value, allowed):
            words = " or ".join(_WORDS[one] for one in allowed)
            raise ConfigurationError(f"{name!r} of loss {loss!r} is {value!r}; it is {words}.")
    return kind(**given)


def _fits(value: object, allowed: tuple[type, ...]) -> bool:
    if value is None or isinstance(value, bool):  # a bool is an int for Python, not for a reader
        return type(value) in allowed
    return float in allowed and isinstance(value, int | float) and 0 <= value < math.inf
