"""Reads declared keywords: those of a function (`art.backend.TrainOptions`), and the fields of settings.

A field says its type, its bounds and its default (`art.backend.Keyword`); the docstring below it says what it
does. Checks, signatures, command lines and docs are made of that.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from numbers import Integral, Real
from types import MappingProxyType, NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from art.backend import EarlierTrainOptions, Keyword, Refused, TrainOptions
from art.errors import ConfigurationError
from art.remote.config.keys import meant

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """One keyword, as its type and its `Keyword` declare it."""

    type: Any
    default: Any
    said: Keyword
    takes: str
    """What its values are, for messages."""
    fits: Callable[[Any], bool]
    """Whether a value is one of them."""


def declared_keywords(kind: Any, **defaults: Any) -> Mapping[str, Declared]:
    """The fields of a TypedDict or dataclass, their types annotated with `Keyword` where they need one; those
    `Refused` are left out.

    defaults: of fields that have another one here than where they are declared.
    """
    hints = get_type_hints(kind, include_extras=True)
    parts = {name: _parts(hint) for name, hint in hints.items() if get_origin(hint) is not ClassVar}
    found = {name: _declared(*two) for name, two in parts.items() if isinstance(two[1], Keyword)}
    if dataclasses.is_dataclass(kind):
        defaults = {field.name: field.default for field in dataclasses.fields(kind)} | defaults
    return MappingProxyType(found | {name: replace(found[name], default=defaults[name]) for name in defaults})


def field_docstrings(kind: Any) -> dict[str, str]:
    """What stands below each field of a class and of its bases, on one line; nothing where Python has no
    source of them.
    """
    node = _class_nodes(kind.__module__).get(kind.__name__)
    if node is None:
        return {}
    found: dict[str, str] = {}
    for base in node.bases:  # a TypedDict has forgotten its own
        known = getattr(sys.modules[kind.__module__], base.id, None) if isinstance(base, ast.Name) else None
        found |= field_docstrings(known) if inspect.isclass(known) else {}
    for field, below in pairwise(node.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found


@lru_cache
def _class_nodes(module: str) -> dict[str, ast.ClassDef]:
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):
        return {}
    return {one.name: one for one in tree.body if isinstance(one, ast.ClassDef)}


def _parts(hint: Any) -> tuple[Any, Any]:
    """A type and what it is annotated with."""
    if get_origin(hint) is Annotated:
        kind, said = get_args(hint)
        return kind, said
    return hint, Keyword()


def _declared(kind: Any, said: Keyword) -> Declared:
    members = list(get_args(kind)) if get_origin(kind) in (Union, UnionType) else [kind]
    optional = NoneType in members
    takes, fits_member = _check([member for member in members if member is not NoneType], said)

    def fits(value: Any) -> bool:
        return optional if value is None else fits_member(value)

    takes = f"{takes}, or None" if optional else takes
    return Declared(type=kind, default=said.default, said=said, takes=takes, fits=fits)


def _check(members: list[Any], said: Keyword) -> tuple[str, Callable[[Any], bool]]:
    """What values of one of these types are called, and whether one is such a value."""
    choices = [choice for member in members if get_origin(member) is Literal for choice in get_args(member)]
    if said.takes and choices:
        return said.takes, lambda value: value in choices
    match [get_origin(member) or member for member in members]:
        case [one] if one is bool:
            return "True or False", lambda value: isinstance(value, bool)
        case [one] if one is int:
            at_least = "" if said.least is None else f" of at least {said.least}"
            return f"a whole number{at_least}", lambda value: _is_whole(value, said.least)
        case [one] if one is float:
            return _number(said)
        case [one] if one in (str, Literal):
            return said.takes or "a name", lambda value: isinstance(value, str)
        case [one] if one is Mapping:
            return "a dict", lambda value: isinstance(value, Mapping)
    return "", lambda value: True


def _number(said: Keyword) -> tuple[str, Callable[[Any], bool]]:
    low, above, high = said.least, said.above, said.most
    bounds = [
        f"of at least {low:g}" if low is not None else "",
        f"above {above:g}" if above is not None else "",
        f"of at most {high:g}" if high is not None else "",
    ]

    def fits(value: Any) -> bool:
        return (
            _is_real(value)
            and (low is None or value >= low)
            and (above is None or value > above)
            and (high is None or value <= high)
        )

    return f"a number {' and '.join(bound for bound in bounds if bound)}".strip(), fits


def _is_real(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def _is_whole(value: Any, least: float | None) -> bool:
    """Whether it is a whole number (True is none) of at least so much."""
    whole = not isinstance(value, bool) and isinstance(value, Integral)
    return whole and (least is None or int(value) >= least)


KEYWORDS = declared_keywords(TrainOptions)
"""Of `train`."""
REFUSED: Mapping[str, Refused] = MappingProxyType(
    {
        name: said
        for name, hint in get_type_hints(EarlierTrainOptions, include_extras=True).items()
        if isinstance(said := _parts(hint)[1], Refused)
    }
)
_DEFAULTS = {name: keyword.default for name, keyword in KEYWORDS.items()}


def with_defaults(options: Mapping[str, Any]) -> TrainOptions:
    """The keywords of a call of `train`, with the defaults of those that were not given."""
    return cast(TrainOptions, {**_DEFAULTS, **options})


def signed_with(keywords: Mapping[str, Declared]) -> Callable[[FunctionT], FunctionT]:
    """A decorator for `def f(..., **options: Unpack[...])`: `inspect.signature` and `help` show each keyword
    with its default.
    """
    named = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.type)
        for name, one in keywords.items()
    ]

    def sign(function: FunctionT) -> FunctionT:
        own = inspect.signature(function)
        places = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
        function.__signature__ = own.replace(parameters=[*places, *named])  # type: ignore[attr-defined]
        return function

    return sign


def refuse_unknown(options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for a keyword of `train` that nobody knows, that cannot act, or whose value it
    does not take.
    """
    for name, value in options.items():
        if name in REFUSED:
            if value not in REFUSED[name].neutral:
                raise ConfigurationError(f"train({name}={value!r}) is not supported: {REFUSED[name].instead}")
            continue
        keyword = KEYWORDS.get(name)
        if keyword is None:
            raise ConfigurationError(f"train({name}={value!r}): no such option{meant(name, KEYWORDS)}")
        if not keyword.fits(value):
            raise ConfigurationError(f"train({name}={value!r}): it is {keyword.takes}")
