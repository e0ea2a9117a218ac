"""Before and after, side by side."""

from __future__ import annotations

import pytest

import art
from art.rewards.reward import Reward, Score
from art.runs.comparison import answer_of, compare


class Judged(Reward):
    """Scores that are known, in turn."""

    name = "known"

    def __init__(self, *values: float | art.Unscored) -> None:
        self.values = iter(values)

    async def scores(self, group: art.TrajectoryGroup) -> list[Score]:
        return [Score(value=next(self.values)) for _ in group]


def attempt(turns: int) -> art.Trajectory:
    said = {"role": "assistant", "content": f"In {turns}."}
    return art.Trajectory(messages_and_choices=[said], metrics={"num_turns": turns})


async def measured(one: art.Trajectory) -> float:
    return float(one.metrics["num_turns"]) / 10


TASKS = ["a", "b", "c", "d"]
BEFORE = [[attempt(3), attempt(5)], [attempt(4)], [attempt(4)], []]
AFTER = [[attempt(1)], [attempt(4)], [attempt(2)], [attempt(1)]]


async def test_both_sides_of_a_task_are_one_group() -> None:
    judge = Judged(0.0, 0.4, 0.8, 0.5, 0.5, art.Unscored("no"), 1.0)  # nobody is asked about "d"
    both = await compare(TASKS, BEFORE, AFTER, per_task=2, judge=judge, measure=measured)
    assert (both.wins, both.ties, both.losses, both.unjudged) == (1, 1, 0, 2)
    assert both.before.judged == pytest.approx(0.35) and both.after.judged == pytest.approx(0.65)
    assert (both.before.attempts, both.before.failed) == (4, 4)
    assert both.before.figures == {"num_turns": 4.0, "measure": pytest.approx(0.4)}
    assert both.judged is not None and both.judged.count == 2 and both.verdict == "no difference shown"
    assert both.measured is not None and both.measured.mean == pytest.approx(-0.167, abs=1e-3)
    third, last = both.tasks[2], both.tasks[3]
    assert (third.judged_before, third.judged_after) == (None, 1.0)
    assert (last.answer_before, last.answer_after) == (None, "In 1.")


async def test_better_is_what_the_whole_interval_is() -> None:
    one, two = [[attempt(1)]] * 3, [[attempt(1)]] * 3
    tasks = TASKS[:3]
    better = await compare(tasks, one, two, per_task=1, judge=Judged(0.1, 0.5, 0.2, 0.7, 0.3, 0.8))
    assert better.verdict == "better" and better.judged is not None and better.judged.above_zero
    worse = await compare(tasks, one, two, per_task=1, judge=Judged(0.5, 0.1, 0.7, 0.2, 0.8, 0.3))
    assert worse.verdict == "worse"
    unsure = await compare(tasks, one, two, per_task=1, judge=Judged(0.1, 0.9, 0.2, 0.1, 0.3, 0.4))
    assert unsure.judged is not None and unsure.judged.mean > 0 and unsure.verdict == "no difference shown"


async def test_without_a_judge_nothing_is_judged() -> None:
    both = await compare(TASKS, BEFORE, AFTER, per_task=2, judge=None)
    assert both.verdict == "not judged" and both.unjudged == 4 and both.before.judged is None
    assert both.measured is None and both.before.figures == {"num_turns": 4.0}


def test_who_only_called_something_said_that() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "done", "arguments": '{"x": 1}'}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    told = {"role": "tool", "tool_call_id": "1", "content": "Right."}
    assert answer_of(art.Trajectory(messages_and_choices=[said, told])) == 'done({"x": 1})'
    assert answer_of(art.Trajectory()) == ""
