from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_policies import MODEL, SHAPE, games, request, trainer

from art.training.optimizer import rate_at
from art.wire.training import RATE_BY_SIZE, OptimizerSpec


def rates(steps: int, **parts: object) -> list[float]:
    spec = OptimizerSpec(learning_rate=2.0, **parts)  # type: ignore[arg-type]
    return [rate_at(spec, step, 2.0) for step in range(steps)]


def test_by_hand() -> None:
    assert rates(3) == [2.0] * 3
    assert rates(5, warmup_steps=3) == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert rates(6, schedule="linear", total_steps=4) == [2.0, 1.5, 1.0, 0.5, 0.5, 0.5]
    cosine = rates(6, schedule="cosine", total_steps=5, warmup_steps=1)
    assert cosine == pytest.approx([1.0, 2.0, *(1 + math.cos(math.pi * k / 4) for k in (1, 2, 3, 3))])


@given(st.sampled_from(["constant", "linear", "cosine"]), st.integers(0, 20), st.integers(1, 50))
def test_it_rises_then_never_rises_again_and_never_ends(schedule: str, warmup: int, more: int) -> None:
    found = rates(warmup + more + 5, schedule=schedule, warmup_steps=warmup, total_steps=warmup + more)
    assert all(one < two for one, two in pairwise(found[: warmup + 1]))
    assert found[warmup] == 2.0
    assert all(one >= two for one, two in pairwise(found[warmup:]))
    assert min(found) > 0


def test_a_step_says_which_rate_the_model_s_size_has() -> None:
    """Whatever its own was; a LoRA has ten times that of all weights."""
    batch = games(1)
    made = trainer()
    told = made.train(batch.tree, batch.entries, request(batch, learning_rate=5e-6))
    rule = 5e-4 * (2000 / SHAPE["hidden_size"]) ** 0.0775
    assert told[RATE_BY_SIZE] == pytest.approx(rule) and told["loss/learning_rate"] == 5e-6
    by_rule = request(batch, step=1).model_copy(update={"optimizer": OptimizerSpec(learning_rate=None)})
    assert made.train(batch.tree, batch.entries, by_rule)["loss/learning_rate"] == pytest.approx(rule)
    made.open(MODEL, None)
    told = made.train(batch.tree, batch.entries, request(batch, learning_rate=5e-6))
    assert told[RATE_BY_SIZE] == pytest.approx(rule / 10)
