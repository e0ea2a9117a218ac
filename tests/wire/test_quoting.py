"""What is quoted of a value is the beginning of its `repr`, at the cost of that beginning."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from art.wire.quoting import quote_value
from core_speed import CoreSpeed


def some_value(rnd: random.Random, depth: int = 0) -> Any:
    if depth > 4 or rnd.random() < 0.3:
        return rnd.choice([1, -2.5, 1e300, 2**53, True, None, "", "ä'\n", 'x"' * 3, "y" * 40])
    if rnd.random() < 0.5:
        return [some_value(rnd, depth + 1) for _ in range(rnd.randrange(5))]
    return {f"k{n}": some_value(rnd, depth + 1) for n in range(rnd.randrange(5))}


def test_it_is_the_beginning_of_the_repr() -> None:
    rnd = random.Random(3)
    for _ in range(500):
        value = some_value(rnd)
        for most in (1, 10, 200):
            if most == 200 or not isinstance(value, str):  # a text that is cut has other quotation marks
                assert quote_value(value, most)[: most // 2] == repr(value)[: most // 2]
        if len(repr(value)) <= 200:
            assert quote_value(value) == repr(value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: [10**6] * 5_000_000,
        lambda: "x" * 50_000_000,
        lambda: dict.fromkeys(map(str, range(500_000)), [1] * 100),
    ],
    ids=["list", "str", "dict"],
)
def test_a_large_value_costs_no_more_than_a_small_one(make: Callable[[], Any]) -> None:
    value = make()
    speed, begun = CoreSpeed(), time.thread_time()
    for _ in range(100):
        assert len(quote_value(value)) == 200
    spent = time.thread_time() - begun
    assert spent < speed.allowed(0.2)
