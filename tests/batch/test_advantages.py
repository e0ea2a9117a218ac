"""Each estimator against its formula in numpy, from the papers, and what the papers leave out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.batch.advantages import advantages
from art.errors import ConfigurationError
from art.wire.algorithm import AdvantageSpec

ZERO_MEAN = ["group", "centered", "batch_std", "rloo", "maxrl"]
"""Equal rewards of a group give exactly zero."""
REWARDS = st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6, allow_nan=False)), max_size=16)


def of(
    kind: str, *groups: list[float | None], lengths: list[list[int]] | None = None, **parts: object
) -> list:
    spec = AdvantageSpec(kind=kind, **parts)  # type: ignore[arg-type]
    return advantages(groups, lengths or [[1] * len(group) for group in groups], spec)


# By formula: `reference` is what the papers say, over groups of numpy arrays and the tokens of each attempt.


def white(values: list[np.ndarray], lengths: list[np.ndarray], ddof: int) -> list[np.ndarray]:
    """Over all tokens: each value is repeated as often as its rollout has tokens."""
    tokens = np.concatenate([np.repeat(v, n) for v, n in zip(values, lengths, strict=True)])
    return [(v - tokens.mean()) / np.sqrt(tokens.var(ddof=ddof) + 1e-8) for v in values]


def reference(kind: str, groups: list[np.ndarray], lengths: list[np.ndarray], ddof: int) -> list[np.ndarray]:
    centred = [r - r.mean() for r in groups]
    if kind == "group":
        return [(r - r.mean()) / (r.std(ddof=ddof) + 1e-6) for r in groups]
    if kind == "batch_std":
        return [c / (np.concatenate(groups).std(ddof=ddof) + 1e-6) for c in centred]
    if kind == "rloo":
        return [np.array([r[i] - np.delete(r, i).mean() for i in range(len(r))]) for r in groups]
    if kind == "maxrl":
        return [(r - r.mean()) / (r.mean() + 1e-6) for r in groups]
    if kind == "reinforce++":
        return white(groups, lengths, ddof)
    if kind == "reinforce++_baseline":
        return white(centred, lengths, ddof)
    return {"centered": centred, "none": [np.ones_like(r) for r in groups]}.get(kind, groups)


@pytest.mark.parametrize("std", ["population", "sample"])
@pytest.mark.parametrize(
    "kind",
    [*ZERO_MEAN, "reinforce++", "reinforce++_baseline", "reward", "gae", "distillation", "none"],
)
def test_against_its_formula(kind: str, std: str) -> None:
    rng = np.random.default_rng(7)
    groups = [rng.uniform(0.1, 3.0, size) for size in (2, 5, 8, 3)]
    lengths = [rng.integers(1, 40, len(r)) for r in groups]
    got = of(kind, *[r.tolist() for r in groups], lengths=[n.tolist() for n in lengths], std=std)
    for one, wanted in zip(got, reference(kind, groups, lengths, int(std == "sample")), strict=True):
        assert np.allclose(one, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("std", ["population", "sample"])
def test_a_discounted_return_is_per_token_and_whitened_over_tokens(std: str) -> None:
    rng = np.random.default_rng(3)
    rewards, lengths, gamma = rng.normal(size=(2, 3)), rng.integers(1, 9, (2, 3)), 0.9
    returns = []
    for reward, length in zip(rewards.ravel(), lengths.ravel(), strict=True):
        per_token = np.zeros(length)
        running = 0.0
        for t in reversed(range(length)):  # the reward arrives with the last token
            running = (reward if t == length - 1 else 0.0) + gamma * running
            per_token[t] = running
        returns.append(per_token)
    tokens = np.concatenate(returns)
    wanted = [(r - tokens.mean()) / np.sqrt(tokens.var(ddof=int(std == "sample")) + 1e-8) for r in returns]
    got = of("reinforce++", *rewards.tolist(), lengths=lengths.tolist(), gamma=gamma, std=std)
    for one, other in zip([value for group in got for value in group], wanted, strict=True):
        assert np.allclose(one, other, rtol=1e-12)


@pytest.mark.slow
@given(REWARDS, st.sampled_from(["group", "centered", "rloo"]))
def test_any_rewards_against_numpy(rewards: list[float | None], kind: str) -> None:
    (values,) = of(kind, rewards)
    scored = np.array([reward for reward in rewards if reward is not None])
    assert [value is None for value in values] == [reward is None for reward in rewards]
    if not len(scored):
        return
    got = np.array([value for value in values if value is not None])
    divisor = {"group": scored.std() + 1e-6, "rloo": (len(scored) - 1) / len(scored) or 1.0}.get(kind, 1.0)
    # Residues below 1e-9 of the largest reward are rounding and read as zero; allow for exactly that.
    slack = 2e-9 * max(1e-300, float(np.abs(scored).max())) / divisor
    assert np.allclose(got, (scored - scored.mean()) / divisor, rtol=1e-6, atol=slack + 1e-300)


# What the formulas leave open


@pytest.mark.parametrize(
    "rewards", [[0.1] * 3, [0.1] * 7, [1e9 + 0.1] * 3, [0.0, 0.0], [-3.3], [0.1 + 0.2, 0.3]]
)
@pytest.mark.parametrize("std", ["population", "sample"])
@pytest.mark.parametrize("kind", ZERO_MEAN)
def test_equal_rewards_and_rounding_residues_give_exactly_zero(
    kind: str, std: str, rewards: list[float]
) -> None:
    other = [0.0, 2.0]  # so that the batch has a deviation
    assert of(kind, rewards, other, std=std)[0] == [0.0] * len(rewards)


@pytest.mark.parametrize("kind", ["reinforce++", "reinforce++_baseline"])
def test_a_whole_batch_of_equal_rewards_is_exactly_zero_when_whitened(kind: str) -> None:
    assert of(kind, [0.1] * 3, [0.1] * 4, lengths=[[3, 1, 5], [2, 2, 7, 1]]) == [[0.0] * 3, [0.0] * 4]


@pytest.mark.parametrize("kind", [*ZERO_MEAN, "reinforce++", "reinforce++_baseline", "reward", "none"])
def test_unscored_attempts_leave_the_statistics(kind: str) -> None:
    (won, lost), rest = of(kind, [1.0, 0.5], [2.0, 0.0], lengths=[[3, 4], [1, 2]])
    lengths = [[3, 99, 4], [1, 2]]
    assert of(kind, [1.0, None, 0.5], [2.0, 0.0], lengths=lengths) == [[won, None, lost], rest]
    assert of(kind, [None, None]) == [[None, None]]
    assert of(kind) == [] and of(kind, []) == [[]]


def test_a_group_of_one() -> None:
    for kind in ZERO_MEAN:
        assert of(kind, [3.0], [1.0, 0.0])[0] == [0.0]
    assert of("reward", [3.0]) == [[3.0]]
    assert of("reinforce++", [3.0], [1.0])[0][0] == pytest.approx(1.0)
    # Baseline: its own mean leaves 0, which whitening moves by the mean over the batch's tokens.
    (alone,), _ = of("reinforce++_baseline", [3.0], [1.0, 0.0], lengths=[[1], [3, 1]])
    tokens = np.array([0.0, 0.5, 0.5, 0.5, -0.5])
    assert alone == pytest.approx((0 - tokens.mean()) / tokens.std())


def test_attempts_without_trained_tokens_have_no_weight_in_the_whitening() -> None:
    with_cut = of("reinforce++", [1.0, 0.0, 9.0], lengths=[[2, 2, 0]])
    assert with_cut[0][:2] == pytest.approx(of("reinforce++", [1.0, 0.0], lengths=[[2, 2]])[0])


def test_the_scale_of_tiny_and_huge_rewards_is_kept() -> None:
    assert of("group", [1e300, -1e300])[0] == pytest.approx([1.0, -1.0])
    assert of("reinforce++", [1e300, -1e300])[0] == pytest.approx([1.0, -1.0])
    assert of("batch_std", [1e300, -1e300], [0.0, 0.0])[0] == pytest.approx([2**0.5, -(2**0.5)])
    # A deviation of 1e-12 is small against the epsilon of 1e-6: the advantage stays small.
    assert of("group", [1e-12, -1e-12])[0] == pytest.approx([1e-6, -1e-6], rel=1e-5)


def test_maxrl_refuses_a_mean_that_turns_the_sign() -> None:
    assert of("maxrl", [0.0, 0.0], [1.0, 0.0])[1] == pytest.approx([1.0, -1.0], rel=1e-5)
    with pytest.raises(ConfigurationError, match=r"mean reward, which is -1.0 for the rewards \[0.0, -2.0\]"):
        of("maxrl", [0.0, -2.0])


def test_balance_scales_one_sign() -> None:
    assert of("centered", [1.0, 0.0], balance=0.25) == [[0.5, -0.375]]
    assert of("centered", [1.0, 0.0], balance=-1.0) == [[0.0, -0.5]]
    ((first, _),) = of("reinforce++", [1.0, -1.0], lengths=[[3, 3]], gamma=0.5, balance=1.0)
    assert (first > 0).all()
    with pytest.raises(ValueError, match="from rewards alone"):
        AdvantageSpec(kind="gae", balance=0.5)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_rewards_that_are_not_finite_are_refused(wrong: float) -> None:
    with pytest.raises(ConfigurationError, match=str(wrong)):
        of("group", [1.0, wrong])
