"""The candidates of a truncated distribution: the ids that top_k, top_p and min_p left when a token was
drawn.

A record holds those of a completion, or of a part of it, as int32; records of parts are joined by `+`:

    count, id, id, ...    for one sampled token after the other, its ids in rising order

A count of 0 says that the set was not recorded: it had more than LIMIT ids. A record that is empty says it of
all tokens: nothing truncated, or the engine does not tell.

    >>> record = record_of([3, 7]) + record_of([]) + record_of([2])
    >>> [one.tolist() for one in split(record)]
    [[3, 7], [], [2]]
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

MAX_CANDIDATES = 128
"""Ids of a set that is recorded: at most 516 bytes a token."""
CANDIDATES_NOT_RECORDED = array("i", [0]).tobytes()
_BYTES = 4


def candidates_record(ids: Sequence[int]) -> bytes:
    """Of one token; of too many ids, that they are not recorded."""
    return array("i", [len(ids), *ids]).tobytes() if len(ids) <= MAX_CANDIDATES else CANDIDATES_NOT_RECORDED


def split_candidates(record: bytes) -> list[array[int]]:
    """The set of each token. Raises ValueError for bytes that are no record."""
    if len(record) % _BYTES:
        raise ValueError(f"{len(record)} bytes are not whole int32 numbers")
    numbers: array[int] = array("i")
    numbers.frombytes(record)
    sets, at = [], 0
    while at < len(numbers):
        stop = at + 1 + numbers[at]
        if not at < stop <= len(numbers):
            raise ValueError(f"a set of {numbers[at]} ids at number {at} of {len(numbers)}")
        sets.append(numbers[at + 1 : stop])
        at = stop
    return sets


def candidates_without_first(record: bytes, tokens: int) -> bytes:
    """The record of the tokens after so many."""
    rest = split_candidates(record)[tokens:]
    return b"".join(map(candidates_record, rest))
