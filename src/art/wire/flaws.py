"""What is wrong with a record, in the words of an error message instead of pydantic's pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

_WITHOUT_VALUE = ("value_error", "missing", "extra_forbidden")
"""Kinds whose input is not what is wrong: the whole record, or the value of a field that has no place."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flaw:
    """One thing that is wrong. As a text, it tells the value where that is what is wrong."""

    field: str
    """A path such as `conversations.3.messages`; empty for the record itself."""
    problem: str
    kind: str
    """Pydantic's name for it, such as `extra_forbidden`."""
    value: Any

    def __str__(self) -> str:
        told = "" if self.kind in _WITHOUT_VALUE else f", not {self.value!r:.200}"
        return f"{self.without_value}{told}"

    @property
    def without_value(self) -> str:
        """For records that hold a key."""
        return f"{self.field}: {self.problem}" if self.field else self.problem


def flaws(error: ValidationError) -> list[Flaw]:
    """All that pydantic found, in its order."""
    return [
        Flaw(
            field=".".join(map(str, one["loc"])),
            problem=one["msg"].removeprefix("Value error, "),
            kind=one["type"],
            value=one["input"],
        )
        for one in error.errors(include_url=False)
    ]


def first_flaw(error: ValidationError) -> Flaw:
    """The first that pydantic found."""
    return flaws(error)[0]


def flaws_without_values(error: ValidationError) -> str:
    """All of them in one line, and no value: one may be a key."""
    return "; ".join(flaw.without_value for flaw in flaws(error))
