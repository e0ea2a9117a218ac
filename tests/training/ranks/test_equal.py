"""Ranks compute what one process computes, and all have the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import Learned, algorithm_of, batch_of, paddings_of
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from art.batch.algorithms.table import TABLE
from art.wire.algorithm import OF_CRITIC

pytestmark = pytest.mark.slow

CLOSE = 1e-10
Told = list[dict[str, Any]]
GangOf = Callable[[int], Any]


def assert_same_bits(told: Told) -> None:
    assert not [one["message"] for one in told if "error" in one]
    for key in ("digest", "bits"):
        assert len({one[key] for one in told}) == 1, f"ranks differ in their {key}"


def assert_equal(case: dict[str, Any], told: Told) -> dict[str, Any]:
    """Returns what one process computed."""
    assert_same_bits(told)
    alone = Learned(case).outcome()
    ours, theirs = np.array(told[0]["weights"]), np.array(alone["weights"])
    assert np.linalg.norm(ours - theirs) <= CLOSE * np.linalg.norm(theirs)
    for got, expected in zip(told[0]["metrics"], alone["metrics"], strict=True):
        assert got["loss/grad_norm"] == pytest.approx(expected["loss/grad_norm"], rel=CLOSE)
        for name in ("loss/train", "loss/entropy", "data/step_trainer_tokens", "loss/ratio_max", "loss/ess"):
            assert got.get(name) == pytest.approx(expected.get(name), rel=1e-6, abs=1e-12), name
    assert set(told[0]["columns"]) == set(alone["columns"])
    for name, column in told[0]["columns"].items():
        assert np.allclose(column, alone["columns"][name], atol=1e-3, equal_nan=True), name
    return alone


def case_of(name: str, world: int, **more: Any) -> dict[str, Any]:
    return {"algorithm": name, "seed": world, "games": {"at_least": 0.1} if name == "maxrl" else {}, **more}


BY_TURNS = [(name, (2, 3, 4)[at % 3]) for at, name in enumerate(TABLE)]
"""Each algorithm on one number of ranks, each number with a third of them."""


@pytest.mark.parametrize(("name", "world"), BY_TURNS)
def test_every_algorithm(name: str, world: int, gang_of: GangOf) -> None:
    case = case_of(name, world)
    assert_equal(case, gang_of(world).run(case))


def computation_of(name: str) -> str:
    """Returns what the trainer computes, as text. Most advantages are in the batch that a rank is given."""
    algorithm = algorithm_of({"algorithm": name})
    of_trainer = algorithm.advantage.kind in (*OF_CRITIC, "distillation")
    return algorithm.model_dump_json(exclude={"name", *(() if of_trainer else ("advantage",))})


COMPUTATIONS = list({computation_of(name): name for name in reversed(TABLE)}.values())[::-1]
"""An algorithm for each computation of the trainer."""


@pytest.mark.parametrize("name", COMPUTATIONS)
@pytest.mark.parametrize("world", [3])
def test_every_computation_with_a_base_in_shards(name: str, world: int, gang_of: GangOf) -> None:
    """The base is cut before anything is attached; the adapters are whole and equal. Dropout acts, and some
    rank forwards more often for nothing than the others: it draws no more than they do.
    """
    case = case_of(name, world, sharded=True, dropout=0.4)
    told = gang_of(world).run(case)
    alone = assert_equal(case, told)
    assert all(one["kept"] < 0.8 * alone["kept"] for one in told)
    assert any(len(set(paddings)) > 1 for paddings in paddings_of(case, world))


VARIANTS: dict[str, dict[str, Any]] = {
    "minibatches x epochs": {"algorithm": "grpo", "parts": {"updates": {"minibatches": 3, "epochs": 2}}},
    "minibatches x epochs, ratio to the trainer": {
        "algorithm": "grpo",
        "parts": {"updates": {"minibatches": 3, "epochs": 2}, "ratio_to": "trainer"},
    },
    "whole sequences in several updates": {
        "algorithm": "gspo",
        "parts": {"updates": {"minibatches": 2, "epochs": 2}},
        "games": {"turns": 5},
    },
    "KL in the loss": {"algorithm": "cispo", "parts": {"kl": {"coefficient": 0.1}}},
    "KL in the reward": {
        "algorithm": "rloo",
        "parts": {"kl": {"estimator": "k1", "coefficient": 0.1, "place": "reward"}},
    },
    "KL off the advantage": {
        "algorithm": "grpo",
        "parts": {"kl": {"estimator": "k1", "coefficient": 0.1, "place": "advantage"}},
    },
    "PPO's critic with a KL": {
        "algorithm": "ppo_critic",
        "parts": {"kl": {"estimator": "k1", "coefficient": 0.05, "place": "reward"}},
    },
    "a value model that first learns alone": {
        "algorithm": "turn_gae",
        "parts": {"critic": {"warmup_steps": 1, "rank": 3}, "advantage": {"lam": 0.9, "whiten": True}},
        "sharded": True,
        "dropout": 0.4,
    },
    "rollouts that masks drop have no vote": {
        "algorithm": "art",
        "parts": {"mismatch": [{"kind": "geometric_mask", "low": 0.5, "high": 2.0}], "masked": "drop"},
    },
    "an adaptive entropy bonus, highest entropies, an average": {
        "algorithm": "grpo",
        "parts": {
            "entropy": {"coefficient": 0.1, "target": 2.5, "step": 0.05},
            "top_entropy": 0.3,
            "kl": {"coefficient": 0.1, "reference": "average", "mixup": 0.4},
        },
        "steps": 3,
    },
    "context samples": {"algorithm": "dapo", "games": {"untrained": 0.6, "groups": 5}},
    "ranks without work": {
        "algorithm": "grpo",
        "games": {"groups": 1, "size": 2, "turns": 1, "untrained": 0.0},
        "budget": 500,
    },
    "all weights": {"algorithm": "grpo", "full": True},
}


@pytest.mark.parametrize(("name", "world"), [(name, (2, 4)[at % 2]) for at, name in enumerate(VARIANTS)])
def test_variants(name: str, world: int, gang_of: GangOf) -> None:
    assert_equal(VARIANTS[name], gang_of(world).run(VARIANTS[name]))


@pytest.mark.parametrize(
    ("name", "sharded"), [("importance_sampling", False), ("gspo", False), ("grpo", False), ("gspo", True)]
)
def test_gradients_of_several_batches_and_a_step(name: str, sharded: bool, gang_of: GangOf) -> None:
    case = case_of(name, 3, added=2, sharded=sharded)
    assert_equal(case, gang_of(3).run(case))


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "all weights"])
def test_variants_with_a_base_in_shards(name: str, gang_of: GangOf) -> None:
    case = {**VARIANTS[name], "sharded": True, "dropout": 0.4}
    assert_equal(case, gang_of(3).run(case))


@pytest.mark.extension
@pytest.mark.parametrize("more", [{}, {"full": True}, {"sharded": True}, {"added": 2}], ids=str)
def test_muon_has_the_whole_of_each_matrix(more: dict[str, Any], gang_of: GangOf) -> None:
    """A base in shards leaves the adapters whole: the singular values of a part would be others."""
    case = {"algorithm": "grpo", "optimizer": "muon", **more}
    assert_equal(case, gang_of(2).run(case))


@pytest.mark.extension
@pytest.mark.parametrize("sharded", [False, True])
def test_factors_of_experts(sharded: bool, gang_of: GangOf) -> None:
    """A base in shards gathers the experts' weights; the factors are whole."""
    case = {"algorithm": "grpo", "experts": True, "sharded": sharded}
    assert_equal(case, gang_of(2).run(case))


@pytest.mark.parametrize("name", ["cispo", "gspo", "ppo_critic", "ppo_value", "sft"])
def test_dropout_draws_the_same_on_any_number_of_ranks(name: str, gang_of: GangOf) -> None:
    """So is the plan, although it leaves ranks without work: masks belong to micro-batches."""
    case = {"algorithm": name, "dropout": 0.4, "budget": 28, "games": {"groups": 6, "turns": 2}}
    told = {world: gang_of(world).run(case) for world in (2, 3)}
    plans = {world: [one["data/micro_batches"] for one in told[world][0]["metrics"]] for world in told}
    for world in told:
        alone = assert_equal(case, told[world])
        assert plans[world] == [one["data/micro_batches"] for one in alone["metrics"]]
    without = Learned({**case, "dropout": 0.0}).outcome()
    assert without["weights"] != pytest.approx(told[2][0]["weights"], rel=1e-6)


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    seed=st.integers(0, 10_000),
    groups=st.integers(1, 6),
    size=st.integers(2, 5),
    turns=st.integers(1, 4),
    untrained=st.sampled_from([0.0, 0.4]),
    budget=st.sampled_from([20, 28, 64, 400]),
    name=st.sampled_from(["cispo", "grpo", "gmpo", "vespo", "ppo_critic", "turn_gae"]),
    world=st.sampled_from([2, 3, 4]),
    sharded=st.booleans(),
)
def test_any_trees(
    gang_of: GangOf,
    seed: int,
    groups: int,
    size: int,
    turns: int,
    untrained: float,
    budget: int,
    name: str,
    world: int,
    sharded: bool,
) -> None:
    shape = {"groups": groups, "size": size, "turns": turns, "untrained": untrained}
    case = {"algorithm": name, "seed": seed, "games": shape, "budget": budget, "steps": 1, "sharded": sharded}
    assume(len(batch_of(case, algorithm_of(case), 0).tree))  # some advantage is left
    assert_equal(case, gang_of(world).run(case))


@pytest.mark.parametrize("name", ["ppo_critic", "ppo_value"])
def test_a_checkpoint_goes_on_with_another_number_of_ranks(
    name: str, tmp_path: Path, gang_of: GangOf
) -> None:
    """Four steps on one process; two on three ranks, and two more on two, or on one."""
    case = {"algorithm": name, "dropout": 0.0, "games": {"groups": 6}}
    first = gang_of(3).run({**case, "steps": 2, "save": str(tmp_path / "0002")})
    assert_same_bits(first)
    resumed = gang_of(2).run({**case, "steps": 2, "checkpoint": str(tmp_path / "0002")})
    assert_same_bits(resumed)
    alone = Learned({**case, "steps": 4}).outcome()
    again = Learned({**case, "steps": 2, "checkpoint": str(tmp_path / "0002")}).outcome()
    for told in (resumed[0], again):
        difference = np.array(told["weights"]) - np.array(alone["weights"])
        assert np.linalg.norm(difference) <= CLOSE * np.linalg.norm(alone["weights"])


@pytest.mark.parametrize("name", ["cispo", "gspo", "ppo_critic", "ppo_value"])
def test_all_ranks_try_again_where_one_has_no_memory(name: str, gang_of: GangOf) -> None:
    """The step is that of half the budget from the start."""
    case = {"algorithm": name, "budget": 80, "steps": 1}
    told = gang_of(3).run({**case, "no_memory": [1]})
    assert_equal({**case, "budget": 40}, told)


def test_an_error_of_one_rank_is_that_of_all_and_the_gang_goes_on(gang_of: GangOf) -> None:
    gang = gang_of(3)
    told = gang.run({"algorithm": "cispo", "fails": [2]})
    assert {one["error"] for one in told[:2]} == {"TrainingError"}
    assert all("shapes differ on rank 2" in one["message"] for one in told)
    assert all("(rank 2)" in one["message"] for one in told[:2])
    case = {"algorithm": "cispo"}
    assert_equal(case, gang.run(case))
