"""Ranks compute what one process computes, and all have the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import Learned

from art.batch.algorithms.table import TABLE

pytestmark = pytest.mark.slow

CLOSE = 1e-10


def assert_equal(case: dict[str, Any], told: list[dict[str, Any]]) -> None:
    alone = Learned(case).outcome()
    assert not [one["message"] for one in told if "error" in one]
    for key in ("digest", "moments"):
        assert len({one[key] for one in told}) == 1, f"ranks differ in their {key}"
    ours, theirs = np.array(told[0]["weights"]), np.array(alone["weights"])
    assert np.linalg.norm(ours - theirs) <= CLOSE * np.linalg.norm(theirs)
    for got, expected in zip(told[0]["metrics"], alone["metrics"], strict=True):
        assert got["loss/grad_norm"] == pytest.approx(expected["loss/grad_norm"], rel=CLOSE)
        for name in ("loss/train", "loss/entropy", "data/step_trainer_tokens", "loss/ratio_max", "loss/ess"):
            assert got.get(name) == pytest.approx(expected.get(name), rel=1e-6, abs=1e-12), name
    assert set(told[0]["columns"]) == set(alone["columns"])
    for name, column in told[0]["columns"].items():
        assert np.allclose(column, alone["columns"][name], atol=1e-3, equal_nan=True), name


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("name", list(TABLE))
def test_every_algorithm(name: str, world: int, gang_of: Callable[[int], Any]) -> None:
    case = {"algorithm": name, "seed": world, "games": {"at_least": 0.1} if name == "maxrl" else {}}
    assert_equal(case, gang_of(world).run(case))


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", list(TABLE))
def test_every_algorithm_with_a_base_in_shards(name: str, world: int, gang_of: Callable[[int], Any]) -> None:
    """The base is cut before anything is attached; the adapters are whole and equal."""
    positive = {"at_least": 0.1} if name == "maxrl" else {}
    case = {"algorithm": name, "seed": world, "games": positive, "sharded": True}
    assert_equal(case, gang_of(world).run(case))
