"""Which scenarios are drawn: by weight, fewer settled ones, the same again after a resume."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import art
from art.environments.adapters.scenario_sampler import ScenarioSampler
from art.errors import ConfigurationError

NAMES = [f"s{number}" for number in range(8)]


def sampler(**options: object) -> ScenarioSampler[str]:
    return ScenarioSampler(NAMES, key=str, **options)  # type: ignore[arg-type]


def group(name: str, *rewards: float | art.Unscored) -> art.TrajectoryGroup:
    return art.TrajectoryGroup(
        [art.Trajectory(reward=reward) for reward in rewards], metadata={"scenario_id": name}
    )


def test_a_step_draws_no_scenario_twice_before_all_have_come() -> None:
    drawn = sampler().draw(3, 20)
    assert sorted(drawn[:8]) == sorted(drawn[8:16]) == NAMES and len(set(drawn[16:])) == 4
    assert sampler().draw(3, 20) == drawn != sampler(seed=1).draw(3, 20)
    assert len({tuple(sampler().draw(step, 4)) for step in range(10)}) > 5


def test_a_scenario_is_settled_by_equal_groups_in_a_row_and_wakes_up() -> None:
    one = sampler()
    one.note([group("s1", 1.0, 1.0), group("s2", 0.0, 0.0), group("s2", 0.0, 0.0)])
    assert one.settled_scenarios == ["s2"] and one.figures() == {
        "scenarios/known": 8.0,
        "scenarios/settled": 1.0,
    }
    one.note([group("s2", 0.0, 1.0), group("s1", 0.5, 0.5, art.Unscored("x"))])
    assert one.settled_scenarios == ["s1"]
    nameless = art.TrajectoryGroup([art.Trajectory(reward=1.0)] * 2)
    one.note([group("s3", 1.0), group("nobody", 1.0, 1.0), nameless])
    assert one.settled_scenarios == ["s1"], "they say nothing"


def test_settled_scenarios_are_drawn_by_their_share_of_the_weight() -> None:
    one = sampler(thin=0.25, settled_after=1)
    one.note(group(name, 1.0, 1.0) for name in NAMES[:4])
    first = Counter(one.draw(step, 1)[0] for step in range(4000))
    settled = sum(first[name] for name in NAMES[:4]) / 4000
    assert settled == pytest.approx(0.2, abs=0.03)  # 4 * 0.25 of 4 * 0.25 + 4
    never = sampler(thin=0, settled_after=1)
    never.note(group(name, 1.0, 1.0) for name in NAMES[:4])
    assert {name for step in range(50) for name in never.draw(step, 4)} == set(NAMES[4:])
    never.note(group(name, 0.0, 0.0) for name in NAMES)
    assert sorted(never.draw(0, 8)) == NAMES, "all are settled: there is nothing better"


def test_heavy_scenarios_come_first_by_their_share() -> None:
    one = sampler(weight=lambda name: 9.0 if name == "s0" else 1.0)
    first = Counter(one.draw(step, 1)[0] for step in range(4000))
    assert first["s0"] / 4000 == pytest.approx(9 / 16, abs=0.03)


EVENTS = st.lists(st.tuples(st.sampled_from(NAMES), st.booleans()), max_size=30)


@given(before=EVENTS, after=EVENTS, step=st.integers(0, 1000), count=st.integers(0, 20))
def test_a_resumed_run_draws_what_it_would_have_drawn(
    before: list[tuple[str, bool]], after: list[tuple[str, bool]], step: int, count: int
) -> None:
    def groups(events: list[tuple[str, bool]]) -> list[art.TrajectoryGroup]:
        return [group(name, 0.0, 1.0 if differs else 0.0) for name, differs in events]

    whole, resumed = sampler(), sampler()
    whole.note(groups(before))
    resumed.load_state(json.loads(json.dumps(whole.state())) | {"gone": 2})
    for one in (whole, resumed):
        one.note(groups(after))
    assert whole.draw(step, count) == resumed.draw(step, count) and len(whole.draw(step, count)) == count
    assert whole.settled_scenarios == resumed.settled_scenarios


@given(
    events=EVENTS,
    thin=st.floats(0.25, 1.0),
    weights=st.lists(st.floats(1.0, 2.0), min_size=4, max_size=4),
    seed=st.integers(),
)
def test_every_scenario_keeps_a_chance_while_thin_is_above_0(
    events: list[tuple[str, bool]], thin: float, weights: list[float], seed: int
) -> None:
    names = NAMES[:4]
    weight = dict(zip(names, weights, strict=True))
    one = ScenarioSampler(names, key=str, thin=thin, weight=weight.__getitem__, seed=seed, settled_after=1)
    one.note_outcomes(events)
    assert sorted(one.draw(0, 4)) == names, "none is gone"
    # The least chance to come first is 0.25 of 6.25: never in 600 steps has the probability 2e-11.
    assert {one.draw(step, 1)[0] for step in range(600)} == set(names)


@given(events=EVENTS, thin=st.floats(0, 1), step=st.integers(0, 1000), count=st.integers(1, 8))
def test_what_a_step_leaves_out_is_settled_and_would_have_been_drawn(
    events: list[tuple[str, bool]], thin: float, step: int, count: int
) -> None:
    one, awake = sampler(thin=thin, settled_after=1), sampler()
    one.note_outcomes(events)
    left_out, drawn = one.left_out(step, count), one.draw(step, count)
    assert set(left_out) <= set(one.settled_scenarios) & set(awake.draw(step, count))
    if thin > 0:
        assert set(left_out) == set(awake.draw(step, count)) - set(drawn)
    if thin == 1 or not one.settled_scenarios:
        assert not left_out


@pytest.mark.parametrize(
    ("scenarios", "options", "message"),
    [
        ([], {}, "0 scenarios with 0 ids"),
        (["a", "a"], {}, "2 scenarios with 1 ids"),
        (["a"], {"weight": lambda one: 0.0}, "'a' has the weight 0.0"),
        (["a"], {"weight": lambda one: float("nan")}, "has the weight nan"),
        (["a"], {"thin": 1.5}, "thin=1.5"),
        (["a"], {"settled_after": 0}, "settled_after=0"),
    ],
)
def test_what_cannot_be_drawn_from_is_refused(
    scenarios: list[str], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ScenarioSampler(scenarios, key=str, **options)  # type: ignore[arg-type]
