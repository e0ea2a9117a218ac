from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.errors import ConfigurationError
from art.samples.advantages import group_advantages

REWARDS = st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6, allow_nan=False)), max_size=16)


def test_by_hand() -> None:
    # mean 0.75, population variance (0.0625 + 0.5625 + 0.0625 + 0.0625) / 4 = 0.1875
    std = math.sqrt(0.1875)
    values = group_advantages([1.0, 0.0, 1.0, 1.0])
    assert values == pytest.approx(
        [0.25 / (std + 1e-6), -0.75 / (std + 1e-6)] + [0.25 / (std + 1e-6)] * 2, rel=1e-12
    )
    assert group_advantages([1.0, 0.0, 1.0, 1.0], "centered") == pytest.approx([0.25, -0.75, 0.25, 0.25])


@pytest.mark.parametrize("rewards", [[0.1] * 7, [1e9 + 0.1] * 3, [0.0, 0.0], [-3.3], [0.1 + 0.2, 0.3]])
@pytest.mark.parametrize("kind", ["group", "centered"])
def test_equal_rewards_and_rounding_residues_give_exactly_zero(rewards: list[float], kind: str) -> None:
    assert group_advantages(rewards, kind) == [0.0] * len(rewards)  # type: ignore[arg-type]


def test_unscored_attempts_leave_the_statistics() -> None:
    won, lost = group_advantages([1.0, 0.0])
    assert group_advantages([1.0, None, 0.0]) == [won, None, lost]
    assert group_advantages([None, None]) == [None, None]
    assert group_advantages([]) == []


@given(REWARDS, st.sampled_from(["group", "centered"]))
def test_against_numpy(rewards: list[float | None], kind: str) -> None:
    values = group_advantages(rewards, kind)  # type: ignore[arg-type]
    scored = np.array([reward for reward in rewards if reward is not None])
    assert [value is None for value in values] == [reward is None for reward in rewards]
    if not len(scored):
        return
    got = np.array([value for value in values if value is not None])
    divisor = scored.std() + 1e-6 if kind == "group" else 1.0
    # Residues below 1e-9 of the largest reward are rounding and read as zero; allow for exactly that.
    slack = 2e-9 * max(1e-300, float(np.abs(scored).max())) / divisor
    assert np.allclose(got, (scored - scored.mean()) / divisor, rtol=1e-6, atol=slack + 1e-300)


def test_the_scale_of_tiny_and_huge_rewards_is_kept() -> None:
    assert group_advantages([1e300, -1e300]) == pytest.approx([1.0, -1.0])
    # A deviation of 1e-12 is small against the epsilon of 1e-6: the advantage stays small.
    assert group_advantages([1e-12, -1e-12]) == pytest.approx([1e-6, -1e-6], rel=1e-5)


def test_wrong_kind_and_wrong_rewards_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"Unknown advantages 'rloo'. Known: centered, group"):
        group_advantages([1.0], "rloo")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="nan"):
        group_advantages([1.0, math.nan])
