"""The canary passes what agrees, and names what does not."""

from __future__ import annotations

import math

import pytest

from art.errors import CanaryError
from art.server.checkpoints.canary import (
    CANARY_FLOAT32,
    CANARY_LOW_PRECISION,
    Canary,
    canary_limits,
    canary_rows,
)
from art.server.checkpoints.score_difference import score_difference

BEFORE = [[-1.0, -2.0], [-0.5]]
AFTER = [[-0.9, -2.2], [-0.4]]
ROWS = [[1, 2, 3], [4, 5]]


def moved(scores: list[list[float]], by: float) -> list[list[float]]:
    return [[value + by for value in row] for row in scores]


def test_an_engine_that_follows_the_trainer_passes() -> None:
    canary = Canary(rows=ROWS, engine_before={0: BEFORE}, trainer_before=BEFORE)
    agreement = canary.check("m@1", {0: moved(AFTER, 1e-5)}, AFTER, CANARY_FLOAT32)
    assert agreement.max == pytest.approx(1e-5)


def test_an_engine_that_computes_something_else_is_named_with_its_numbers() -> None:
    canary = Canary(rows=ROWS, engine_before={0: BEFORE}, trainer_before=BEFORE)
    with pytest.raises(CanaryError, match=r"'m@1'.*0\.01 in the mean.*step before is still served"):
        canary.check("m@1", {0: moved(AFTER, 0.01)}, AFTER, CANARY_FLOAT32)


def test_one_wrong_token_is_enough() -> None:
    engine = [[-0.9, -2.2], [-0.4 + 2e-3]]
    with pytest.raises(CanaryError, match=r"0\.002 at most"):
        Canary(rows=ROWS).check("m@1", {0: engine}, AFTER, CANARY_FLOAT32)


def test_an_engine_that_still_computes_the_step_before_is_found_even_when_the_step_was_small() -> None:
    canary = Canary(rows=ROWS, engine_before={0: BEFORE}, trainer_before=moved(BEFORE, 1e-6))
    small = moved(BEFORE, 1e-4)
    with pytest.raises(CanaryError, match=r"trainer's logprobs moved by up to .*the engine's not at all"):
        canary.check("m@1", {0: BEFORE}, small, CANARY_FLOAT32)
    assert canary.check("m@1", {0: small}, small, CANARY_FLOAT32).max == 0.0


def test_weights_that_did_not_move_may_score_the_same() -> None:
    canary = Canary(rows=ROWS, engine_before={0: BEFORE}, trainer_before=BEFORE)
    assert canary.check("m@1", {0: BEFORE}, BEFORE, CANARY_FLOAT32).max == 0.0


def test_a_logprob_that_is_no_number_fails() -> None:
    with pytest.raises(CanaryError, match="inf"):
        Canary(rows=ROWS).check("m@1", {0: [[math.nan, -2.2], [-0.4]]}, AFTER, CANARY_LOW_PRECISION)


def test_scores_of_other_rows_fail() -> None:
    with pytest.raises(CanaryError, match=r"\[1\] tokens"):
        score_difference([[-1.0]], BEFORE)


def test_limits_follow_the_less_precise_side() -> None:
    assert canary_limits(["float32", "torch.float32"]) == CANARY_FLOAT32
    assert canary_limits(["float32", "bfloat16"]) == CANARY_LOW_PRECISION


def test_rows_are_few_short_distinct_and_scorable() -> None:
    sequences = [[1], [1, 2], [1, 2], *([number] * 100 for number in range(9))]
    rows = canary_rows(sequences, rows=3, tokens=8)
    assert rows == [[1, 2], [0] * 8, [1] * 8]
