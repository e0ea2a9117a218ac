"""The numbers of the rows of a history, packed: a run has thousands of rows of a hundred names each."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

_NUMBERS = frozenset({float, int})
_INFINITE = float("inf")


class StepNumbers(Mapping[str, float]):
    """The numbers of one step. Steps share their names, which takes a tenth of the memory of a dict."""

    __slots__ = ("_places", "_values")
    _places: Mapping[str, int]
    """Each name's place among the values."""

    def __init__(self, places: Mapping[str, int], values: array[float]) -> None:
        self._places, self._values = places, values

    @property
    def places(self) -> Mapping[str, int]:
        """Each name's place; the same object for rows of the same names."""
        return self._places

    @property
    def values_in_order(self) -> array[float]:
        """The values, by place."""
        return self._values

    def __getitem__(self, name: str) -> float:
        return self._values[self._places[name]]

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def get(self, name: str, default: Any = None) -> Any:
        """See `Mapping.get`; pages ask each step of a long run."""
        place = self._places.get(name)
        return default if place is None else self._values[place]


def column_of(rows: Mapping[int, StepNumbers], name: str) -> dict[int, float]:
    """Returns the steps that have the number, and it."""
    places = {id(row.places): row.places.get(name) for row in rows.values()}
    found = {}
    for step, row in rows.items():
        place = places[id(row.places)]
        if place is not None:
            found[step] = row.values_in_order[place]
    return found


def all_names(rows: Iterable[Mapping[str, float]]) -> set[str]:
    """Returns the names that some of the rows have."""
    known = (row.places if isinstance(row, StepNumbers) else row for row in rows)
    return {name for names in {id(one): one for one in known}.values() for name in names}


@dataclass(frozen=True, slots=True)
class _RowShape:
    """The part that rows with the same fields share. others: fields that are no numbers."""

    places: Mapping[str, int]
    take: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    others: tuple[str, ...]


@dataclass(frozen=True)
class NumberPacker:
    """Takes the finite numbers of rows. Rows of the same names share these."""

    _layouts: dict[tuple[str, ...], dict[str, int]] = field(default_factory=dict)
    _shapes: dict[tuple[str, ...], _RowShape] = field(default_factory=dict)

    def pack(self, row: Mapping[str, Any]) -> StepNumbers:
        """Returns the finite numbers of a row. Raises OverflowError for an integer that is no float."""
        fields = tuple(row)
        shape = self._shapes.get(fields)
        if shape is not None and not any(type(row[name]) in _NUMBERS for name in shape.others):
            values = shape.take(row)
            if _NUMBERS.issuperset(map(type, values)) and math.isfinite(sum(values)):
                return StepNumbers(shape.places, array("d", values))
        numbers = {
            name: value
            for name, value in row.items()
            if type(value) in _NUMBERS and -_INFINITE < value < _INFINITE
        }
        packed = self.pack_numbers(numbers)
        if len(numbers) > 1:  # of one name, itemgetter returns no tuple
            others = tuple(name for name in fields if name not in numbers)
            self._shapes[fields] = _RowShape(packed.places, itemgetter(*numbers), others)
        return packed

    def pack_numbers(self, numbers: Mapping[str, float]) -> StepNumbers:
        """Returns finite numbers, packed. Raises OverflowError for an integer that is no float."""
        names = tuple(numbers)
        places = self._layouts.setdefault(names, {})
        if len(places) != len(names):
            places.update((name, place) for place, name in enumerate(names))
        return StepNumbers(places, array("d", numbers.values()))

    def merge(self, before: StepNumbers | None, after: StepNumbers) -> StepNumbers:
        """Returns the numbers of two rows of one step; those of the later one replace the others."""
        return after if before is None else self.pack_numbers({**before, **after})
