"""How trajectories and gathers behave, as programs rely on it: one case a row; what differs says why."""

from __future__ import annotations

import asyncio
import copy
import inspect
import warnings

import pytest
from openai.types.chat.chat_completion import Choice

import art
from art import errors
from art.capture import auto_trajectory, capture_auto_trajectory
from art.tracking.averages import as_groups, summarize


async def rollout(outcome: float | Exception = 1.0) -> art.Trajectory:
    if isinstance(outcome, Exception):
        raise outcome
    return art.Trajectory(reward=outcome)


def failing(failures: int, total: int) -> list:
    return [rollout(ValueError("x")) if number < failures else rollout() for number in range(total)]


def test_an_empty_group():
    assert len(art.TrajectoryGroup([])) == 0


@pytest.mark.parametrize("given", [list, tuple, iter, lambda items: (item for item in items)])
def test_results_and_exceptions(given):
    # Ours keeps the exceptions also of a generator: otherwise the rate of exceptions would be wrong.
    one, two = art.Trajectory(reward=1), art.Trajectory(reward=2)
    group = art.TrajectoryGroup(given([one, ValueError("x"), two]))
    assert group.trajectories == [one, two]
    assert (group.exceptions[0].type, group.exceptions[0].message) == ("<class 'ValueError'>", "x")
    assert "ValueError: x" in group.exceptions[0].traceback


def test_a_generator_of_trajectories():
    assert [t.reward for t in art.TrajectoryGroup(art.Trajectory(reward=r) for r in range(3))] == [0, 1, 2]


async def test_coroutines_give_an_awaitable():
    async def slow() -> art.Trajectory:
        await asyncio.sleep(0.01)
        return art.Trajectory(reward=1.0)

    pending = art.TrajectoryGroup([slow(), rollout(2.0)])
    assert pending._num_trajectories == 2 and not isinstance(pending, art.TrajectoryGroup)
    # Ours comes back in the order given, not in that of completion: results can be told apart.
    assert [trajectory.reward for trajectory in await pending] == [1.0, 2.0]


async def test_a_rollout_that_returns_no_trajectory():
    async def wrong() -> int:
        return 3

    groups = [art.TrajectoryGroup([wrong(), rollout()])]
    (group,) = await art.gather_trajectory_groups(groups, max_exceptions=1)
    assert len(group) == 1 and len(group.exceptions) == 1
    assert "3" in group.exceptions[0].message  # ours names what came back


def test_strangers_in_a_group():
    # Ours counts them as failures instead of dropping them in silence.
    group = art.TrajectoryGroup(["str", None])
    assert len(group) == 0 and len(group.exceptions) == 2


def test_what_describes_a_group():
    group = art.TrajectoryGroup(
        [art.Trajectory()], metadata={"scenario_id": "s1"}, metrics={"judge": 0.5}, logs=["l"]
    )
    assert (group.metadata, group.metrics, group.logs) == ({"scenario_id": "s1"}, {"judge": 0.5}, ["l"])


async def test_a_group_outside_of_a_gather():
    with pytest.raises(ValueError, match="x"):
        await art.TrajectoryGroup([rollout(4.0), rollout(ValueError("x"))])
    # Ours keeps no count from one call to the next.
    assert art.gather.get_gather_context().metric_sums == {}


@pytest.mark.parametrize(
    ("allowed", "failures", "total", "raises"),
    [
        (2, 2, 4, False),
        (2, 3, 4, True),
        (0.5, 2, 4, False),
        (1.0, 1, 2, False),  # the count 1, not a share of 100 %
        (1.0, 2, 2, True),
    ],
)
async def test_forgiven_failures(allowed, failures, total, raises):
    gathering = art.gather_trajectory_groups(
        [art.TrajectoryGroup(failing(failures, total))], max_exceptions=allowed
    )
    if raises:
        with pytest.raises(ValueError, match="x"):
            await gathering
    else:
        (group,) = await gathering
        assert (len(group), len(group.exceptions)) == (total - failures, failures)


async def test_a_group_that_failed_altogether_is_still_judged():
    judged = []

    async def judge(group: art.TrajectoryGroup) -> art.TrajectoryGroup:
        judged.append(group)
        return group

    groups = [art.TrajectoryGroup(failing(2, 2))]
    (group,) = await art.gather_trajectory_groups(groups, max_exceptions=2, after_each=judge)
    assert judged == [group] and len(group) == 0 and len(group.exceptions) == 2


async def test_what_after_each_may_return():
    async def judge(group: art.TrajectoryGroup):
        reward = group.trajectories[0].reward
        return None if reward == 0 else [group, group] if reward == 1 else group

    groups = [art.TrajectoryGroup([rollout(reward)]) for reward in (0.0, 1.0, 2.0)]
    kept = await art.gather_trajectory_groups(groups, after_each=judge)
    assert [group.trajectories[0].reward for group in kept] == [1, 1, 2]


async def test_after_each_raises():
    async def judge(group: art.TrajectoryGroup) -> art.TrajectoryGroup:
        raise KeyError("judge")

    with pytest.raises(KeyError, match="judge"):
        await art.gather_trajectory_groups(
            [art.TrajectoryGroup([rollout()])], max_exceptions=9, after_each=judge
        )
    assert asyncio.all_tasks() == {asyncio.current_task()}  # ours leaves no sibling running


async def test_exceptions_among_gathered_trajectories():
    first, second, third = await art.gather_trajectories(
        [rollout(1.0), rollout(ValueError("x")), rollout(2.0)], max_exceptions=5
    )
    assert (first.reward, third.reward) == (1.0, 2.0) and isinstance(second, ValueError)


async def test_metrics_of_yes_and_no():
    async def won(yes: bool) -> art.Trajectory:
        return art.Trajectory(reward=1.0, metrics={"won": yes})

    context = art.gather.GatherContext()
    with art.gather.set_gather_context(context):
        group = await art.TrajectoryGroup([won(True), won(False), won(True), won(True)])
    assert context.metric_sums["won"] / context.metric_divisors["won"] == 0.75
    assert summarize(as_groups([group]), "train").averages["won"] == 0.75


async def test_a_gather_of_the_program_s_own():
    """Its context by keyword, its rollouts in tuples: what a self-play example brings along."""

    async def game(reward: float) -> tuple[art.Trajectory, art.Trajectory]:
        return art.Trajectory(reward=reward), art.Trajectory(reward=1 - reward)

    context = art.gather.GatherContext(pbar=None, pbar_total_completion_tokens=True, max_exceptions=0)
    with art.gather.set_gather_context(context):
        played = await asyncio.gather(*[art.gather.wrap_group_awaitable(game(r)) for r in (0.0, 1.0)])
    first, second = (art.TrajectoryGroup([seats[i] for seats in played]) for i in range(2))
    assert [t.reward for t in first] == [0.0, 1.0] and [t.reward for t in second] == [1.0, 0.0]
    assert context.metric_divisors["reward"] == 4


def test_unknown_arguments():
    class Fresh(art.Trajectory):
        pass

    # Ours says so, once for each name; of `Trajectory` itself it is an error: a reward would be lost.
    with pytest.warns(UserWarning, match="foo"):
        assert not hasattr(Fresh(foo=1), "foo")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Fresh(foo=2)


async def test_finishing_twice():
    trajectory = art.Trajectory().finish()
    first = trajectory.metrics["duration"]
    await asyncio.sleep(0.002)
    assert trajectory.finish().metrics["duration"] > first


def test_deep_copies():
    group = art.TrajectoryGroup([art.Trajectory(reward=1), ValueError("x")])
    twice = copy.deepcopy([group, group])
    assert twice[0] is twice[1] and twice[0] == group
    twice[0].trajectories[0].metrics["a"] = 1
    twice[0].exceptions[0].message = "y"
    assert group.trajectories[0].metrics == {} and group.exceptions[0].message == "x"


def test_equality_is_that_of_the_fields():
    trajectory = art.Trajectory(reward=1)
    assert art.TrajectoryGroup([trajectory]) == art.TrajectoryGroup([trajectory])
    assert art.Trajectory(reward=1) != trajectory  # made at another time


def test_a_choice_without_content():
    choice = Choice.construct(index=0, finish_reason="stop", message={"role": "assistant", "content": None})
    assert art.Trajectory(messages_and_choices=[choice]).messages() == [{"role": "assistant", "content": ""}]


async def test_a_captured_coroutine_without_completions():
    async def silent() -> None:
        return None

    trajectory = await capture_auto_trajectory(silent())
    assert trajectory.messages_and_choices == [] and list(trajectory.metrics) == ["duration"]


async def test_nested_captures():
    async def inner() -> None:
        auto_trajectory(required=True).reward = 1.0

    async def outer() -> None:
        assert (await capture_auto_trajectory(inner())).reward == 1.0
        auto_trajectory(required=True).metrics["outer"] = 1

    trajectory = await capture_auto_trajectory(outer())
    assert trajectory.reward == 0.0 and trajectory.metrics["outer"] == 1


def test_our_errors_are_those_of_python_too():
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, Exception)]
    assert len(kinds) > 30 and all(issubclass(kind, errors.ARTError) for kind in kinds)
    for ours, pythons in (
        (errors.ConfigurationError, ValueError),
        (errors.NotRegisteredError, ValueError),
        (errors.DeadlineError, TimeoutError),
        (errors.CheckpointMissingError, FileNotFoundError),
        (errors.ServerUnreachableError, ConnectionError),
        (errors.NotBuiltError, NotImplementedError),
    ):
        assert issubclass(ours, pythons)
