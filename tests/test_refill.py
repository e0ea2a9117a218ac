"""Groups without a signal are replaced by further ones: as many as wanted, bounded, and none is lost."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import art
from art.errors import ConfigurationError


async def rollout(reward: float | art.Unscored, waits: int = 0) -> art.Trajectory:
    await asyncio.sleep(0)
    for _ in range(waits):
        await asyncio.sleep(0)
    return art.Trajectory(reward=reward)


def group(name: int, *rewards: float, waits: int = 0) -> Any:
    return art.TrajectoryGroup((rollout(one, waits) for one in rewards), metadata={"name": name})


def names(groups: list[art.TrajectoryGroup]) -> list[Any]:
    return [one.metadata["name"] for one in groups]


def replaced(groups: list[art.TrajectoryGroup]) -> list[Any]:
    return [other.metadata["name"] for one in groups for other in one._replaced]


FLAT, GOOD = (1.0, 1.0), (0.0, 1.0)


async def test_a_group_without_a_signal_is_replaced_in_its_place() -> None:
    further = iter([group(10, *FLAT), group(11, *GOOD), group(12, *GOOD)])
    found = await art.gather_trajectory_groups(
        [group(0, *GOOD), group(1, *FLAT), group(2, *GOOD)], refill=further, pbar_desc=None
    )
    assert names(found) == [0, 11, 2] and names(found[1]._replaced) == [1, 10]
    assert names([await next(further)]) == [12], "what was not needed is not begun"


@pytest.mark.parametrize("most", [0, 2])
async def test_refills_are_bounded_and_what_nothing_replaces_stays(most: int) -> None:
    numbers = iter(range(10, 99))
    found = await art.gather_trajectory_groups(
        [group(0, *FLAT), group(1, *FLAT)],
        refill=lambda: group(next(numbers), *FLAT),
        max_refills=most,
        pbar_desc=None,
    )
    assert len(found) == 2 and len(replaced(found)) == most
    assert next(numbers) == 10 + most


async def test_by_default_three_further_groups_for_each() -> None:
    numbers = iter(range(10, 99))
    found = await art.gather_trajectory_groups(
        [group(0, *FLAT), group(1, *FLAT)], refill=lambda: group(next(numbers), *FLAT), pbar_desc=None
    )
    assert len(found) == 2 and len(replaced(found)) == 6


async def further_group() -> art.TrajectoryGroup:
    return art.TrajectoryGroup([art.Trajectory(reward=one) for one in GOOD], metadata={"name": 10})


ENDS: list[Callable[[], Any]] = [
    lambda: [group(10, *GOOD)],
    lambda: (group(10, *GOOD) for _ in range(1)),
    lambda: iter([group(10, *GOOD), None]).__next__,
    lambda: iter([group(10, *GOOD)]).__next__,  # which raises StopIteration at its end
    lambda: iter([further_group()]).__next__,
]


@pytest.mark.parametrize("refill", ENDS)
async def test_further_groups_come_from_iterables_and_functions_and_may_end(refill: Any) -> None:
    found = await art.gather_trajectory_groups(
        [group(0, *FLAT), group(1, *FLAT, waits=9)], refill=refill(), pbar_desc=None
    )
    assert names(found) == [10, 1] and replaced(found) == [0]


async def test_a_group_is_compared_after_it_was_judged() -> None:
    async def judge(one: art.TrajectoryGroup) -> art.TrajectoryGroup:
        for place, trajectory in enumerate(one):
            trajectory.reward = float(place) * (one.metadata["name"] > 0)
        return one

    found = await art.gather_trajectory_groups(
        [group(0, *GOOD)], after_each=judge, refill=[group(1, *FLAT)], pbar_desc=None
    )
    assert names(found) == [1] and replaced(found) == [0]


async def test_a_program_may_say_what_a_signal_is() -> None:
    found = await art.gather_trajectory_groups(
        [group(0, *GOOD), group(1, *FLAT)],
        refill=[group(2, *FLAT)],
        has_signal=lambda one: one.metadata["name"] > 0,
        pbar_desc=None,
    )
    assert names(found) == [2, 1] and replaced(found) == [0]


async def test_unscored_and_failed_groups_have_no_signal_and_failures_are_still_bounded() -> None:
    async def fails() -> art.Trajectory:
        raise OSError("no world")

    lost = art.TrajectoryGroup([rollout(art.Unscored("no judge")), fails()], metadata={"name": 0})
    further = [art.TrajectoryGroup([fails(), fails()], metadata={"name": 1}), group(2, *GOOD)]
    found = await art.gather_trajectory_groups([lost], refill=further, max_exceptions=3, pbar_desc=None)
    assert names(found) == [2] and [len(one.exceptions) for one in found[0]._replaced] == [1, 2]
    with pytest.raises(OSError, match="no world"):
        await art.gather_trajectory_groups(
            [group(0, *FLAT)], refill=[art.TrajectoryGroup([fails()])], pbar_desc=None
        )


async def test_a_share_of_failures_is_of_all_rollouts_that_began() -> None:
    async def fails() -> art.Trajectory:
        raise OSError("no world")

    bad = [art.TrajectoryGroup([rollout(1.0), fails()], metadata={"name": n}) for n in range(2)]
    found = await art.gather_trajectory_groups(
        bad[:1], refill=[bad[1], group(5, *GOOD)], max_exceptions=0.5, pbar_desc=None
    )
    assert names(found) == [5]


async def test_what_was_not_needed_of_a_list_is_closed() -> None:
    gc.collect()  # what other tests have left
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # a coroutine that was never awaited
        found = await art.gather_trajectory_groups(
            [group(0, *GOOD)], refill=[group(1, *GOOD), group(2, *GOOD)], pbar_desc=None
        )
        gc.collect()
    assert names(found) == [0]


@pytest.mark.parametrize(
    "options", [{"max_refills": 3}, {"refill": [], "max_refills": -1}], ids=["no source", "below 0"]
)
async def test_a_bound_that_would_not_act_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="max_refills"):
        await art.gather_trajectory_groups([], **options)


@given(
    wanted=st.lists(st.sampled_from([FLAT, GOOD]), min_size=1, max_size=5),
    further=st.lists(st.sampled_from([FLAT, GOOD]), max_size=8),
    most=st.integers(0, 8),
)
def test_whatever_began_is_returned_or_replaced_once(
    wanted: list[tuple[float, ...]], further: list[tuple[float, ...]], most: int
) -> None:
    begun: list[int] = []

    def refill() -> Iterator[Any]:
        for number, rewards in enumerate(further, 100):
            begun.append(number)
            yield group(number, *rewards, waits=number % 3)

    async def gather() -> list[art.TrajectoryGroup]:
        first = [group(number, *rewards) for number, rewards in enumerate(wanted)]
        return await art.gather_trajectory_groups(first, refill=refill(), max_refills=most, pbar_desc=None)

    found = asyncio.run(gather())
    assert len(found) == len(wanted)
    assert sorted(names(found) + replaced(found)) == sorted([*range(len(wanted)), *begun])
    assert len(begun) == len(replaced(found)) <= min(most, len(further))
    with_signal = sum(one.trajectories[0].reward != one.trajectories[1].reward for one in found)
    offered = [*wanted, *further[:most]].count(GOOD)
    assert with_signal == min(len(wanted), offered)
