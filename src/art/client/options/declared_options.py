"""Reads options where they are declared: the keywords of a function, and the fields of settings.

A field of a TypedDict or dataclass says its type, its bounds and its default (`art.backend.Keyword`), and the
docstring below it says what it does. Checks, signatures, command lines and docs are made of that.
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
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from art.backend import Keyword, Refused

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclaredOption:
    """One option, as its type and its `Keyword` declare it."""

    type: Any
    default: Any
    keyword: Keyword
    takes: str
    """What its values are, for messages."""
    fits: Callable[[Any], bool]
    """Whether a value is one of them."""


def declared_options(kind: Any, **defaults: Any) -> Mapping[str, DeclaredOption]:
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
    """Returns the text below each field of a class and of its bases, on one line; empty if Python has no
    source.
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


def refused_options(kind: Any) -> Mapping[str, Refused]:
    """The fields of a TypedDict that are annotated with `Refused`."""
    hints = get_type_hints(kind, include_extras=True)
    parts = {name: _parts(hint)[1] for name, hint in hints.items()}
    return MappingProxyType({name: said for name, said in parts.items() if isinstance(said, Refused)})


def _parts(hint: Any) -> tuple[Any, Any]:
    """A type and what it is annotated with."""
    if get_origin(hint) is Annotated:
        kind, said = get_args(hint)
        return kind, said
    return hint, Keyword()


def _declared(kind: Any, keyword: Keyword) -> DeclaredOption:
    members = list(get_args(kind)) if get_origin(kind) in (Union, UnionType) else [kind]
    optional = NoneType in members
    takes, fits_member = _check([member for member in members if member is not NoneType], keyword)

    def fits(value: Any) -> bool:
        return optional if value is None else fits_member(value)

    takes = f"{takes}, or None" if optional else takes
    return DeclaredOption(type=kind, default=keyword.default, keyword=keyword, takes=takes, fits=fits)


def _check(members: list[Any], keyword: Keyword) -> tuple[str, Callable[[Any], bool]]:
    """Returns the name of these types' values, and a check whether a value is one."""
    choices = [choice for member in members if get_origin(member) is Literal for choice in get_args(member)]
    if keyword.takes and choices:
        return keyword.takes, lambda value: value in choices
    match [get_origin(member) or member for member in members]:
        case [one] if one is bool:
            return "True or False", lambda value: isinstance(value, bool)
        case [one] if one is int:
            at_least = "" if keyword.least is None else f" of at least {keyword.least}"
            return f"a whole number{at_least}", lambda value: _is_whole(value, keyword.least)
        case [one] if one is float:
            return _number(keyword)
        case [one] if one in (str, Literal):
            return keyword.takes or "a name", lambda value: isinstance(value, str)
        case [one] if one is Mapping:
            return "a dict", lambda value: isinstance(value, Mapping)
    return "", lambda value: True


def _number(keyword: Keyword) -> tuple[str, Callable[[Any], bool]]:
    low, above, high = keyword.least, keyword.above, keyword.most
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
    """Returns whether it is a whole number (True is none) of at least so much."""
    is_integer = not isinstance(value, bool) and isinstance(value, Integral)
    return is_integer and (least is None or int(value) >= least)


def signed_with(keywords: Mapping[str, DeclaredOption]) -> Callable[[FunctionT], FunctionT]:
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
