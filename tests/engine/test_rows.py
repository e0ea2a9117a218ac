"""Prefixes are found under the same adapter only, as far as they are computed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.engine.builtin.cache import EMPTY, HEAD, RowTable


def ids(*values: int) -> np.ndarray:
    return np.array([*range(HEAD), *values])


def table(*rows: tuple[int, np.ndarray, int]) -> RowTable:
    made = RowTable(8)
    made.widen(64)
    for row, (adapter, values, computed) in enumerate(rows):
        made.begin_request(row, adapter, values, computed)
    return made


def test_ready_is_computed_and_coming_is_known() -> None:
    match = table((0, ids(6, 7, 8), HEAD + 2)).match(0, ids(6, 7, 8, 9))
    assert (match.row, match.ready, match.coming) == (0, HEAD + 2, HEAD + 3)


def test_another_adapter_shares_nothing() -> None:
    assert table((1, ids(6, 7), HEAD + 2)).match(0, ids(6, 7)).row == EMPTY


def test_a_released_row_promises_only_what_is_computed() -> None:
    made = table((0, ids(6, 7, 8), HEAD + 1))
    made.release(0)
    assert made.match(0, ids(6, 7, 8)).coming == HEAD + 1


def test_the_oldest_idle_row_goes_first() -> None:
    made = table(*((0, ids(n), HEAD) for n in range(4)))
    for row in (2, 0, 3):
        made.release(row)
    assert made.oldest_idle(4, besides=EMPTY) == 2
    assert made.oldest_idle(4, besides=2) == 0


@pytest.mark.slow
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=20), min_size=1, max_size=8), st.data())
def test_the_longest_common_prefix_is_found(tails: list[list[int]], data: st.DataObject) -> None:
    rows = [ids(*tail) for tail in tails]
    computed = [data.draw(st.integers(0, len(row))) for row in rows]
    asked = ids(*data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=20)))
    match = table(*((0, row, done) for row, done in zip(rows, computed, strict=True))).match(0, asked)

    def common(row: np.ndarray) -> int:
        length = 0
        while length < min(len(row), len(asked)) and row[length] == asked[length]:
            length += 1
        return length

    assert match.ready == max(min(common(row), done) for row, done in zip(rows, computed, strict=True))
    assert match.coming == max(map(common, rows))
