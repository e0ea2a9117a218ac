from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Iterator
from typing import get_overloads

import pytest
from openai.types.chat.chat_completion import Choice

import art
from art.gather import (
    GatherContext,
    get_gather_context,
    record_metrics,
    set_gather_context,
    wrap_group_awaitable,
    wrap_trajectories_awaitable,
)
from art.rollout_tasks import current_rollout, rollout_scope
from art.tracking import progress


async def rollout(reward: float = 1.0, *, wait: int = 0, **fields) -> art.Trajectory:
    for _ in range(wait):
        await asyncio.sleep(0)
    if isinstance(reward, Exception):
        raise reward
    return art.Trajectory(reward=reward, **fields)


def only_this_task() -> bool:
    return asyncio.all_tasks() == {asyncio.current_task()}


class Witness:
    """Counts rollouts that started, and those that were cancelled."""

    def __init__(self) -> None:
        self.started = self.cancelled = 0

    async def forever(self) -> art.Trajectory:
        self.started += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        raise AssertionError


async def test_group_of_coroutines_runs_them_in_order_of_input():
    pending = art.TrajectoryGroup(rollout(float(i), wait=5 - i) for i in range(5))
    assert not isinstance(pending, art.TrajectoryGroup) and pending._num_trajectories == 5
    group = await pending
    assert [trajectory.reward for trajectory in group] == [0, 1, 2, 3, 4]
    with pytest.raises(RuntimeError, match="already awaited"):
        await pending


async def test_mixed_items_keep_their_places():
    group = await art.TrajectoryGroup(
        [art.Trajectory(reward=0), rollout(1.0), ValueError("x")], metadata={"id": 1}
    )
    assert [t.reward for t in group] == [0, 1] and len(group.exceptions) == 1 and group.metadata == {"id": 1}


async def test_group_outside_a_gather_raises_its_first_failure_and_shares_no_count():
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            await art.TrajectoryGroup([rollout(ValueError("no")), rollout(4.0)])
    assert len(await art.TrajectoryGroup([rollout()])) == 1
    assert get_gather_context().metric_sums == {}
    assert get_gather_context() is not get_gather_context()
    assert only_this_task()


def _game() -> art.Trajectory:
    return art.Trajectory(messages_and_choices=[{"role": "user", "content": "a long story " * 50}])


async def _another() -> art.Trajectory:
    return _game()


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (lambda: 3, "play() returned 3, an int, not a Trajectory"),
        (lambda: None, "play() returned None, not a Trajectory: end it with `return trajectory`"),
        (
            lambda: (_game(), 0.5),
            "play() returned a tuple, not a Trajectory: return the Trajectory alone, and put further values "
            "into its `metrics` or `metadata`",
        ),
        (
            _another,
            "play() returned a coroutine, not a Trajectory: write `await` before the call that it returns",
        ),
        (lambda: _game, "play() returned a function, not a Trajectory: call the function"),
    ],
)
@pytest.mark.filterwarnings("error::RuntimeWarning")  # a coroutine that nobody awaits
async def test_a_rollout_that_returns_no_trajectory_has_failed(returned, told):
    async def play():
        return returned()

    (group,) = await art.gather_trajectory_groups(
        [art.TrajectoryGroup([play(), rollout()])], max_exceptions=1
    )
    assert len(group) == 1 and [failure.message for failure in group.exceptions] == [told]
    if not told.startswith("play() returned a tuple"):  # several trajectories are two players' there
        with pytest.raises(TypeError) as caught:
            await art.gather_trajectories([play()])
        assert str(caught.value) == told
    gc.collect()


def test_a_function_among_the_trajectories_of_a_group_is_told_in_short():
    failures = art.TrajectoryGroup([_game(), (_game(), 1.0), _another]).exceptions
    assert all("long story" not in failure.message for failure in failures)
    assert [failure.message.partition(",")[0] for failure in failures] == [
        "a rollout returned a tuple",
        "a rollout returned a function",
    ]


@pytest.mark.parametrize(
    ("set_wrong", "told"),
    [
        (
            lambda t: setattr(t, "reward", "good"),
            "the reward of a rollout is 'good', a str, not a number: set a number, or "
            "art.Unscored(reason) if it is unknown",
        ),
        (lambda t: setattr(t, "reward", "0.5"), "the reward of a rollout is '0.5', a str, not a number"),
        (lambda t: setattr(t, "reward", {"total": 1}), "the reward of a rollout is a dict, not a number"),
        (
            lambda t: t.metrics.update(verdict="won"),
            "metric 'verdict' of a rollout is 'won', a str, not a number: set a number; text goes into "
            "`metadata`",
        ),
    ],
)
async def test_a_reward_or_metric_that_is_no_number_fails_its_rollout_by_name(set_wrong, told):
    async def play():
        trajectory = _game()
        set_wrong(trajectory)
        return trajectory

    for gathering in (
        art.gather_trajectory_groups([art.TrajectoryGroup([play()])]),
        art.gather_trajectories([play()]),
        art.gather_trajectory_groups([art.TrajectoryGroup([art.Trajectory()]), _one_of(play())]),
    ):
        with pytest.raises(art.errors.ConfigurationError) as caught:
            await gathering
        assert str(caught.value).startswith(told)
    (group,) = await art.gather_trajectory_groups(
        [art.TrajectoryGroup([play(), rollout(True)])], max_exceptions=1
    )
    assert [t.reward for t in group] == [True] and told in group.exceptions[0].message


async def _one_of(work):
    return [await work]


@pytest.mark.filterwarnings("error::RuntimeWarning")  # a coroutine that nobody awaits
async def test_a_reward_whose_await_is_missing_says_so():
    async def play():
        trajectory = _game()
        trajectory.reward = waiting = score()
        try:
            return trajectory
        finally:
            waiting.close()

    async def score():
        return 1.0

    with pytest.raises(art.errors.ConfigurationError, match="is a coroutine, not a number: write `await`"):
        await art.TrajectoryGroup([play()])


async def test_a_gather_that_is_given_one_rollout_or_an_unawaited_call_names_it():
    for gather in (art.gather_trajectory_groups, art.gather_trajectories):
        with pytest.raises(
            TypeError, match=rf"{gather.__name__}\(\) was given a coroutine, rollout\(\): write"
        ):
            await gather(rollout())
        with pytest.raises(TypeError, match=r"was given a TrajectoryGroup whose rollouts have not run"):
            await gather(art.TrajectoryGroup([rollout()]))
        with pytest.raises(TypeError, match=r"was given 3, an int, not a list"):
            await gather(3)


async def test_groups_come_back_in_order_with_their_exceptions():
    groups = await art.gather_trajectory_groups(
        (art.TrajectoryGroup([rollout(float(g), wait=9 - g), rollout(KeyError("k"))]) for g in range(3)),
        max_exceptions=3,
    )
    assert [[t.reward for t in group] for group in groups] == [[0], [1], [2]]
    assert all(len(group.exceptions) == 1 for group in groups)


@pytest.mark.parametrize(
    ("allowed", "failures", "total", "raises"),
    [
        (0, 1, 2, True),
        (2, 2, 4, False),
        (2, 3, 4, True),
        (0.5, 2, 4, False),
        (0.5, 3, 4, True),
        (1.0, 2, 4, True),
    ],
)
async def test_max_exceptions(allowed, failures, total, raises):
    rollouts = [rollout(ValueError("x")) for _ in range(failures)] + [
        rollout() for _ in range(total - failures)
    ]
    gathering = art.gather_trajectory_groups([art.TrajectoryGroup(rollouts)], max_exceptions=allowed)
    if raises:
        with pytest.raises(ValueError):
            await gathering
    else:
        (group,) = await gathering
        assert len(group.exceptions) == failures
    assert only_this_task()


async def test_too_many_failures_cancel_and_await_all_siblings():
    witness = Witness()
    groups = [art.TrajectoryGroup([witness.forever(), witness.forever()]) for _ in range(3)]
    groups.append(art.TrajectoryGroup([witness.forever(), rollout(ValueError("bad"), wait=3)]))
    with pytest.raises(ValueError, match="bad"):
        await art.gather_trajectory_groups(groups)
    assert witness.started == witness.cancelled == 7
    assert only_this_task()


async def test_cancelling_a_gather_cancels_its_rollouts():
    witness = Witness()
    for gathering in (
        art.gather_trajectory_groups([art.TrajectoryGroup([witness.forever(), witness.forever()])]),
        art.gather_trajectories([witness.forever()]),
        art.TrajectoryGroup([witness.forever()]),
    ):
        task = asyncio.ensure_future(gathering)
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert witness.started == witness.cancelled == 4
    assert only_this_task()


@pytest.mark.slow
async def test_no_coroutine_is_left_unawaited():
    gc.collect()  # what earlier tests left is not this one's
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        async def fails_at_once():
            raise ValueError("early")

        with pytest.raises(ValueError):
            await art.gather_trajectory_groups([fails_at_once(), art.TrajectoryGroup([rollout()])])
        for ticks in range(1, 5):  # cancelled before its tasks, then their tasks, have begun
            task = asyncio.ensure_future(art.gather_trajectory_groups([art.TrajectoryGroup([rollout()])]))
            for _ in range(ticks):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        gc.collect()


async def test_cancelled_rollout_is_a_failure_not_the_end():
    async def cancels_itself():
        raise asyncio.CancelledError

    (group,) = await art.gather_trajectory_groups(
        [art.TrajectoryGroup([cancels_itself(), rollout()])], max_exceptions=1
    )
    assert len(group) == 1 and len(group.exceptions) == 1


async def test_after_each_keeps_drops_and_multiplies_groups():
    async def judge(group: art.TrajectoryGroup):
        kind = group.metadata["kind"]
        return {"keep": group, "drop": None, "two": [group, group]}[kind]

    groups = [art.TrajectoryGroup([rollout()], metadata={"kind": kind}) for kind in ("keep", "drop", "two")]
    done = await art.gather_trajectory_groups(groups, after_each=judge)
    assert [group.metadata["kind"] for group in done] == ["keep", "two", "two"]


async def test_after_each_sees_empty_groups_and_its_errors_end_the_gather():
    async def refuse(group: art.TrajectoryGroup):
        raise LookupError(len(group))

    with pytest.raises(LookupError, match="0"):
        await art.gather_trajectory_groups(
            [art.TrajectoryGroup([rollout(ValueError("x"))])], max_exceptions=1, after_each=refuse
        )


async def test_plain_coroutines_of_groups():
    async def group(reward) -> art.TrajectoryGroup:
        return art.TrajectoryGroup([await rollout(reward)])

    groups = await art.gather_trajectory_groups([group(ValueError("x")), group(2.0)], max_exceptions=1)
    assert [[t.reward for t in g] for g in groups] == [[2.0]]


async def test_gather_trajectories_gives_what_the_rollouts_gave_with_errors_in_place():
    async def several() -> tuple[art.Trajectory, art.Trajectory]:
        return art.Trajectory(reward=5), art.Trajectory(reward=6)

    async def one_by_one() -> Iterator[art.Trajectory]:
        return (art.Trajectory(reward=reward) for reward in (7, 8))

    work = [rollout(1.0), rollout(ValueError("x")), several(), one_by_one()]
    single, failed, pair, generated = await art.gather_trajectories(iter(work), max_exceptions=5)
    assert isinstance(single, art.Trajectory) and single.reward == 1 and isinstance(failed, ValueError)
    assert [type(kept) for kept in (pair, generated)] == [list, list]
    assert [[t.reward for t in kept] for kept in (pair, generated)] == [[5, 6], [7, 8]]


def test_checkers_see_lists_of_lists_where_rollouts_give_several():
    def types(overload) -> tuple[str, str]:
        return overload.__annotations__["trajectories"], overload.__annotations__["return"]

    assert [types(overload) for overload in get_overloads(art.gather_trajectories)] == [
        ("Iterable[Awaitable[Trajectory]]", "list[Trajectory]"),
        ("Iterable[Awaitable[Trajectory]]", "list[Trajectory | BaseException]"),
        ("Iterable[Awaitable[Iterable[Trajectory]]]", "list[list[Trajectory]]"),
        ("Iterable[Awaitable[Iterable[Trajectory]]]", "list[list[Trajectory] | BaseException]"),
    ]


async def test_two_players_of_each_game_are_taken_apart_by_walking_through_both():
    async def play(game: int) -> list[art.Trajectory]:
        return [art.Trajectory(reward=game), art.Trajectory(reward=-game)]

    games = await art.gather_trajectories(play(game) for game in range(3))
    group = art.TrajectoryGroup(trajectory for game in games for trajectory in game)
    assert [trajectory.reward for trajectory in group] == [0, 0, 1, -1, 2, -2] and not group.exceptions


async def test_a_rollout_that_returns_a_stranger_among_several_is_refused_by_name():
    async def several() -> list[object]:
        return [art.Trajectory(reward=5), "six"]

    with pytest.raises(TypeError, match=r"several\(\) returned a list, not a Trajectory: return the"):
        await art.gather_trajectories([several()])


@pytest.mark.parametrize("kind", [tuple, list, iter])
async def test_a_group_may_be_any_iterable_of_trajectories(kind):
    async def play(reward: float) -> object:
        return kind([art.Trajectory(reward=reward), art.Trajectory(reward=-reward)])

    context = GatherContext(pbar=TqdmLike(total=3))
    with set_gather_context(context):
        games = await asyncio.gather(*(wrap_group_awaitable(play(reward)) for reward in (1.0, 2.0, 3.0)))
    seats = [[t.reward for t in seat] for seat in zip(*games, strict=True)]
    assert seats == [[1, 2, 3], [-1, -2, -3]] and all(isinstance(game, tuple | list) for game in games)
    assert context.pbar.done == 3 and context.metric_divisors["reward"] == 6

    seen = []

    async def after(group: art.TrajectoryGroup) -> art.TrajectoryGroup:
        seen.append(type(group))
        return group

    groups = await art.gather_trajectory_groups([play(1.0), play(2.0)], after_each=after)
    assert [[t.reward for t in group] for group in groups] == [[1, -1], [2, -2]]
    assert seen == [art.TrajectoryGroup] * 2
    batches = [batch async for batch in art.trajectory_group_batches([play(4.0)], batch_size=1)]
    assert [[t.reward for t in group] for (group,) in batches] == [[4, -4]]


async def test_failures_among_the_trajectories_of_a_group_are_counted():
    async def play() -> list[object]:
        return [art.Trajectory(reward=1.0), ValueError("lost")]

    context = GatherContext(max_exceptions=1)
    with set_gather_context(context):
        kept = await wrap_group_awaitable(play())
    assert len(kept) == 2 and context.metric_sums == {"reward": 1.0, "exceptions": 1}
    (group,) = await art.gather_trajectory_groups([play()], max_exceptions=1)
    assert len(group) == 1 and group.exceptions[0].message == "lost"


@pytest.mark.parametrize("wrong", [7, "text", {"a": 1}, [1], art.Trajectory()])
async def test_what_is_no_group_is_refused(wrong):
    async def play() -> object:
        return wrong

    with pytest.raises(TypeError, match=r"^play\(\) returned .*an? \w+") as caught:
        await wrap_group_awaitable(play())
    assert len(str(caught.value)) < 200


async def test_each_rollout_has_its_own_id():
    async def name() -> art.Trajectory:
        await asyncio.sleep(0)
        return art.Trajectory(metadata={"id": current_rollout()})

    (group,) = await art.gather_trajectory_groups([art.TrajectoryGroup(name() for _ in range(20))])
    singles = await art.gather_trajectories(name() for _ in range(20))
    ids = [t.metadata["id"] for t in [*group, *singles]]
    assert len(set(ids)) == 40 and None not in ids
    assert [t.rollout_id for t in [*group, *singles]] == ids
    assert current_rollout() is None
    with rollout_scope("mine"):
        assert current_rollout() == "mine" == art.Trajectory().rollout_id


def test_rollout_ids_fit_into_a_header():
    with pytest.raises(ValueError, match="printable ASCII"), rollout_scope("a\r\nx-evil: 1"):
        pass


class Recorder(progress.SilentProgress):
    def __init__(self) -> None:
        self.done = 0
        self.values: dict[str, float] = {}

    def advance(self, n, values):
        self.done += n
        self.values = dict(values)


async def test_means_in_the_bar_leave_unscored_out():
    bar = Recorder()
    with set_gather_context(GatherContext(pbar=bar, max_exceptions=1)):
        await art.TrajectoryGroup(
            [
                rollout(1.0, metrics={"acc": True}),
                rollout(0.0, metrics={"acc": False, "late": 3}),
                rollout(art.Unscored("x")),
                rollout(ValueError("x")),
            ]
        )
    assert bar.done == 4
    assert bar.values == {"reward": 0.5, "acc": 0.5, "late": 3, "exceptions": 1}


async def test_bar_is_closed_when_the_gather_fails(monkeypatch, capsys):
    import sys

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with pytest.raises(ValueError):
        await art.gather_trajectory_groups([art.TrajectoryGroup([rollout(ValueError("x")), rollout()])])
    drawn = capsys.readouterr().err
    assert "gather" in drawn and "\x1b[?25l" not in drawn.split("\x1b[?25h")[-1]  # the cursor is shown again


async def test_silent_when_told_so_or_without_a_terminal(capsys):
    await art.gather_trajectories([rollout()], pbar_desc=None)
    await art.gather_trajectories([rollout()])
    assert capsys.readouterr() == ("", "")


async def test_a_group_that_a_coroutine_awaited_is_counted_once():
    async def make() -> art.TrajectoryGroup:
        return await art.TrajectoryGroup([rollout(1.0), rollout(3.0), rollout(ValueError("x"))])

    context = GatherContext(max_exceptions=1, total=3)
    with set_gather_context(context):
        group = await wrap_group_awaitable(make())
    assert len(group) == 2 and len(group.exceptions) == 1
    assert context.metric_sums == {"reward": 4.0, "exceptions": 1} and context.metric_divisors["reward"] == 2


async def test_rollouts_one_by_one_in_a_context_of_one_s_own():
    async def two() -> tuple[art.Trajectory, art.Trajectory]:
        return art.Trajectory(reward=2.0), art.Trajectory(reward=4.0)

    bar = TqdmLike(total=4)
    context = GatherContext(pbar=bar, max_exceptions=0.5)
    with set_gather_context(context):
        assert get_gather_context() is context
        kept = await asyncio.gather(
            *(wrap_trajectories_awaitable(work) for work in (rollout(1.0), two(), rollout(KeyError("k"))))
        )
        assert kept[0].reward == 1.0 and [trajectory.reward for trajectory in kept[1]] == [2.0, 4.0]
        assert isinstance(kept[2], KeyError)
        assert isinstance(await wrap_trajectories_awaitable(rollout(KeyError("k"))), KeyError)
        with pytest.raises(KeyError):
            await wrap_trajectories_awaitable(rollout(KeyError("k")))
    assert bar.done == 5 and bar.shown == {"reward": 7 / 3, "exceptions": 3}


class TqdmLike:
    """What programs put into `GatherContext.pbar`."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.shown = total, 0, {}

    def update(self, n: int) -> None:
        self.done += n

    def set_postfix(self, values) -> None:
        self.shown = dict(values)


def sampled(*, logprobs: int | None = None, **extra) -> Choice:
    entries = [{"token": "x", "logprob": -1.0, "bytes": [], "top_logprobs": []}] * (logprobs or 0)
    fields = {"content": entries, "refusal": None} if logprobs is not None else None
    message = {"role": "assistant", "content": "hi"}
    return Choice.construct(index=0, finish_reason="stop", message=message, logprobs=fields, **extra)


@pytest.mark.parametrize(
    ("choices", "tokens"),
    [
        ([sampled(logprobs=4), sampled(logprobs=2, completion_tokens=9)], 3),
        ([sampled(completion_tokens=4), sampled(logprobs=2)], 3),
        ([sampled(completion_tokens=5), sampled()], 5),
        ([sampled(), {"role": "assistant", "content": "x", "completion_tokens": 3}], None),
    ],
)
def test_completion_tokens_from_logprobs_or_the_server_s_count(choices, tokens):
    context, trajectory = GatherContext(), art.Trajectory(messages_and_choices=choices)
    record_metrics(context, trajectory)
    assert trajectory.metrics.get("completion_tokens") == tokens
    assert context.metric_sums.get("completion_tokens") == tokens


async def test_a_reward_that_is_not_finite_is_in_no_mean_and_ends_no_gather():
    with set_gather_context(GatherContext()) as context:
        group = await art.TrajectoryGroup(rollout(reward) for reward in (1.0, float("nan"), float("inf")))
    assert len(group) == 3 and not group.exceptions
    assert (context.metric_sums["reward"], context.metric_divisors["reward"]) == (1.0, 1)


async def test_forgiven_failures_are_logged_with_the_first_traceback_and_their_count(caplog):
    async def fail(number: int) -> art.Trajectory:
        raise ConnectionAbortedError(f"number {number}")

    async def caught() -> list[art.Trajectory | BaseException]:
        return [art.Trajectory(reward=1), *await asyncio.gather(fail(2), return_exceptions=True)]

    work = [art.TrajectoryGroup([rollout(1.0), fail(0), fail(1)]), caught()]
    await art.gather_trajectory_groups(work, max_exceptions=2)
    await art.gather_trajectories([rollout(1.0), fail(3)], max_exceptions=0.5)
    first, *counts = caplog.messages
    assert first.startswith("a rollout failed and is left out: ConnectionAbortedError: number ")
    assert "in fail" in first and len(counts) == 2
    assert counts[0].startswith("3 of 4 rollouts failed and are left out: 3 ConnectionAbortedError (number ")
    assert counts[1] == "1 of 2 rollouts failed and are left out: 1 ConnectionAbortedError (number 3)"


async def test_groups_that_a_judge_leaves_out_are_counted_in_the_log(caplog):
    async def judge(group: art.TrajectoryGroup) -> art.TrajectoryGroup | None:
        return group if group.trajectories[0].reward else None

    caplog.set_level("INFO", "art")
    groups = [art.TrajectoryGroup([rollout(reward)]) for reward in (0.0, 1.0, 0.0)]
    assert len(await art.gather_trajectory_groups(groups, after_each=judge)) == 1
    assert caplog.messages == ["after_each left 2 of 3 groups out"]
