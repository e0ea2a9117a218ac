"""A named algorithm with some of its parts exchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from art.algorithms.check import check_algorithm
from art.algorithms.table import DEFAULT, find_row, meant
from art.errors import ConfigurationError
from art.nested import deep_merge
from art.wire.algorithm import Algorithm, MismatchSpec
from art.wire.flaws import first_flaw

KINDS = ("kind", "name")
"""The field that says what a part is: one of another kind replaces the row's, one of the same adds to it."""


def resolve(name: str = DEFAULT, /, **parts: Any) -> Algorithm:
    """The row `name` with `parts` laid over it: nested dicts, specs of `art.wire.algorithm`, or, for a part
    that is known by its kind alone, a string. None takes an optional part away.

    >>> resolve("grpo", aggregation="token_mean").aggregation.kind
    'token_mean'
    >>> resolve("grpo", loss={"params": {"epsilon_high": 0.28}}).loss.params
    {'epsilon': 0.2, 'epsilon_high': 0.28}

    Raises ConfigurationError for unknown names and parts, listing the known ones, for wrong values, and for
    combinations that make no sense, with the reason.
    """
    row = find_row(name)
    merged = {**row.algorithm.model_dump(exclude_unset=True), "name": name}
    for part, value in parts.items():
        merged[part] = _laid_over(part, merged.get(part), value)
    if "name" in parts:
        raise ConfigurationError(f"The name of the algorithm is given twice: {name!r} and {parts['name']!r}.")
    algorithm = _validated(merged)
    check_algorithm(algorithm)
    return algorithm


def _laid_over(part: str, own: Any, given: Any) -> Any:
    """What a part becomes."""
    if part not in Algorithm.model_fields:
        raise ConfigurationError(
            f"An algorithm has no part {part!r}{meant(part, Algorithm.model_fields)}. "
            f"Known: {', '.join(known for known in Algorithm.model_fields if known != 'name')}."
        )
    if isinstance(given, BaseModel):
        return given.model_dump()
    discriminator = _discriminator(part)
    if isinstance(given, str) and discriminator is not None:
        given = {discriminator: given}
    if isinstance(given, list):
        return [one.model_dump() if isinstance(one, BaseModel) else one for one in given]
    if not isinstance(given, Mapping) or not isinstance(own, Mapping):
        return given
    if discriminator in given and given[discriminator] != own.get(discriminator):
        return dict(given)
    return deep_merge(own, given)


def _discriminator(part: str) -> str | None:
    spec = _spec(part)
    return next((kind for kind in KINDS if kind in spec.model_fields), None) if spec else None


def _spec(part: str) -> type[BaseModel] | None:
    """The model of a part, or None where it is a plain value."""
    if part == "mismatch":
        return MismatchSpec
    annotation = Algorithm.model_fields[part].annotation
    for one in (annotation, *get_args(annotation)):
        if isinstance(one, type) and issubclass(one, BaseModel):
            return one
    return None


def _validated(merged: Mapping[str, Any]) -> Algorithm:
    try:
        return Algorithm.model_validate(merged)
    except ValidationError as error:
        flaw = first_flaw(error)
        part, *inside = flaw.field.split(".")
        told = f"{flaw}."
        if flaw.kind == "extra_forbidden" and inside and (spec := _spec(part)) is not None:
            told = f"{flaw.field}: no such field; known: {', '.join(spec.model_fields)}."
        raise ConfigurationError(f"Algorithm {merged['name']!r}: {told}") from error
