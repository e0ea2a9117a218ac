from __future__ import annotations

import copy
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.errors import ConfigurationError
from art.metrics import MetricsBuilder


async def test_groups_of_costs_and_sums_over_the_run():
    builder = MetricsBuilder("train")
    builder.add_cost("train/prefill", 1.0)
    builder.add_cost("train/sample", 2.0)
    builder.add_cost("train/sample", 0.5)
    builder.add_cost("gpu", 4.0)
    first = {
        "costs/train/prefill": 1.0,
        "costs/train/sample": 2.5,
        "costs/gpu": 4.0,
        "costs/train": 3.5,
        "costs/all": 7.5,
    }
    cumulative = {name.replace("costs/", "costs/cum/"): value for name, value in first.items()}
    assert await builder.flush() == first | cumulative
    assert await builder.flush() == {}
    builder.add_cost("gpu", 1.0)
    assert await builder.flush() == {
        "costs/gpu": 1.0,
        "costs/all": 1.0,
        "costs/cum/gpu": 5.0,
        "costs/cum/all": 8.5,
    }


async def test_speeds_are_quotients_of_sums_over_the_run():
    builder = MetricsBuilder("train")
    for tokens, seconds in ((100, 1.0), (200, 2.0)):
        builder.add_data(step_actor_tokens=tokens)
        builder.add_user_timing(step_actor_s=seconds, step_wall_s=5, step_eval_s=1)
        builder.add_metric("data/step_trainer_tokens", tokens)
        builder.add_metric("time/step_trainer_s", 2 * seconds)
        builder.add_idle_times(step_trainer_idle_s=1, step_actor_idle_s=2)
        row = await builder.flush()
    assert row["throughput/avg_actor_tok_per_s"] == 100 and row["throughput/avg_trainer_tok_per_s"] == 50
    assert row["throughput/cum/trainer_idle_s"] == 2 and row["throughput/cum/actor_idle_s"] == 4
    assert row["time/cum/wall_s"] == 10 and row["time/cum/eval_s"] == 2


async def test_amounts_of_rollouts_have_the_spelling_that_came_first():
    builder = MetricsBuilder("train")
    builder.add_data(step_rollout_tokens=100)
    builder.add_user_timing(step_rollout_s=4)
    builder.add_idle_times(step_rollout_idle_s=2)
    row = await builder.flush()
    assert row == {
        "data/step_rollout_tokens": 100,
        "data/cum/rollout_tokens": 100,
        "time/step_rollout_s": 4,
        "time/cum/rollout_s": 4,
        "throughput/step_rollout_idle_s": 2,
        "throughput/cum/rollout_idle_s": 2,
        "throughput/avg_rollout_tok_per_s": 25,
    }
    builder.add_user_timing(step_actor_s=1)  # as the pipeline says it
    assert await builder.flush() == {
        "time/step_rollout_s": 1,
        "time/cum/rollout_s": 5,
        "throughput/avg_rollout_tok_per_s": 20,
    }
    resumed, other = MetricsBuilder("train"), MetricsBuilder("train")
    resumed.load_state_dict(builder.state_dict())
    resumed.add_user_timing(step_actor_s=5)
    assert (await resumed.flush())["time/cum/rollout_s"] == 10
    other.add_user_timing(step_actor_s=1)
    await other.flush()
    other.add_user_timing(step_rollout_s=2)
    assert await other.flush() == {"time/step_actor_s": 2, "time/cum/actor_s": 3}
    with pytest.raises(ConfigurationError, match="step_actor_s and step_rollout_s are one amount"):
        builder.add_user_timing(step_actor_s=1, step_rollout_s=1)


async def test_no_speed_without_time():
    builder = MetricsBuilder("train")
    builder.add_data(step_actor_tokens=5)
    assert "throughput/avg_actor_tok_per_s" not in await builder.flush()


async def test_scenarios_count_once():
    builder = MetricsBuilder("train")
    builder.add_data(step_num_scenarios=3, scenario_ids=["a", "b", "a"])
    assert (await builder.flush())["data/cum/num_unique_scenarios"] == 2
    builder.add_data(scenario_ids=["b", 7])
    assert await builder.flush() == {"data/cum/num_unique_scenarios": 3}


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("costs/a", "Cannot log 'costs/a' as a leaf: it is an ancestor of 'costs/a/b'."),
        ("costs/a/b/c", "Cannot log 'costs/a/b/c' as a leaf: 'costs/a/b' is already a leaf ancestor."),
        ("plain", "metric 'plain' needs a section in front"),
        ("costs//a", "metric 'costs//a' needs a section in front"),
        ("data/cum/x", "'data/cum/...' is kept for sums over the run"),
    ],
)
async def test_names_that_cannot_be(key, text):
    builder = MetricsBuilder("train")
    builder.add_metric("costs/a/b", 1.0)
    with pytest.raises(ValueError) as refused:
        builder.add_metric(key, 1.0)
    assert text in str(refused.value)
    with pytest.raises(ValueError):
        builder.add_metrics({"costs/fine": 1.0, key: 1.0})
    assert (await builder.flush())["costs/all"] == 1.0


async def test_amounts_are_finite_numbers():
    builder = MetricsBuilder("train")
    for value in (float("nan"), float("inf"), "many"):
        with pytest.raises(ValueError):
            builder.add_metric("costs/a", value)
    builder.add_metric("data/step_flags", True)
    assert (await builder.flush())["data/cum/flags"] == 1.0


async def test_measure_adds_the_seconds_also_of_what_failed():
    builder = MetricsBuilder("train")
    for _ in range(2):
        with pytest.raises(KeyError), builder.measure("time/step_parse_s"):
            raise KeyError
    assert (await builder.flush())["time/step_parse_s"] >= 0


def test_the_active_builder_belongs_to_the_task():
    builder, inner = MetricsBuilder("train"), MetricsBuilder("eval")
    with pytest.raises(LookupError):
        MetricsBuilder.get_active()
    with builder.activate_context() as active:
        assert active is builder
        token = inner.activate()
        assert MetricsBuilder.get_active() is inner
        token.var.reset(token)
        assert MetricsBuilder.get_active() is builder
    with pytest.raises(LookupError):
        MetricsBuilder.get_active()


async def test_contexts_share_sums_and_scopes_have_amounts_of_their_own():
    builder = MetricsBuilder("train")
    shared, apart = builder.for_cost_context("eval"), builder.for_cost_context("eval", buffer_scope="side")
    builder.add_cost("a", 1.0)
    shared.add_cost("a", 1.0)
    apart.add_cost("a", 4.0)
    assert (await apart.flush())["costs/cum/a"] == 4.0
    row = await builder.flush()
    assert row["costs/a"] == 2.0 and row["costs/cum/a"] == 6.0
    assert await shared.flush() == {}


async def test_the_sums_go_through_a_state():
    builder = MetricsBuilder("train")
    builder.add_data(step_num_scenarios=2, scenario_ids=["a"])
    await builder.flush()
    state = builder.state_dict()
    assert state == {
        "cum_state": {"data/cum/num_scenarios": 2.0},
        "unique_scenario_ids": ["a"],
    }
    other = MetricsBuilder("train")
    other.load_state_dict(state)
    other.add_data(step_num_scenarios=1, scenario_ids=["a"])
    assert await other.flush() == {
        "data/step_num_scenarios": 1.0,
        "data/cum/num_scenarios": 3.0,
        "data/cum/num_unique_scenarios": 1.0,
    }


async def test_a_copy_counts_for_itself():
    builder = MetricsBuilder("train")
    builder.add_cost("a", 1.0)
    copied = copy.deepcopy(builder)
    copied.add_cost("a", 1.0)
    assert (await builder.flush())["costs/a"] == 1.0 and (await copied.flush())["costs/a"] == 2.0


async def test_several_threads_add():
    builder = MetricsBuilder("train")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: builder.add_cost("a", 1.0), range(2000)))
    assert (await builder.flush())["costs/a"] == 2000.0


def test_a_context_needs_a_name():
    with pytest.raises(ValueError, match="cost_context ''"):
        MetricsBuilder("")


NAMES = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)
AMOUNTS = st.lists(st.tuples(NAMES, st.integers(0, 9)), max_size=8)


@pytest.mark.slow
@given(steps=st.lists(AMOUNTS, max_size=5))
def test_sums_are_consistent_whatever_is_added(steps):
    """Leaves add up to their groups, groups to all, and rows to the sums over the run."""
    builder, over_the_run = MetricsBuilder("train"), Counter()
    for amounts in steps:
        leaves = Counter()
        for path, usd in amounts:
            with suppress(ConfigurationError):  # a leaf that is a group already, or the other way round
                builder.add_cost(path, usd)
                leaves[path] += usd
        row = builder.take_metrics()
        for group in {leaf[:end] for leaf in leaves for end in range(1, len(leaf) + 1, 2)}:
            inside = sum(usd for leaf, usd in leaves.items() if f"{leaf}/".startswith(f"{group}/"))
            assert row[f"costs/{group}"] == inside
        assert row.get("costs/all", 0) == sum(leaves.values())
        for name, value in row.items():
            if not name.startswith("costs/cum/"):
                over_the_run[name] += value
                assert row[name.replace("costs/", "costs/cum/", 1)] == over_the_run[name]
    assert builder.take_metrics() == {}
