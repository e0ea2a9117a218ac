"""What a reward leaves of a group: everything, with the reward set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

import pytest

import art
from art.errors import BudgetExceededError, ConfigurationError, LlmUnavailableError, VerifierError
from art.rewards.reward import GroupScores, Judgement, Reward, Score
from art.trajectories import History, PydanticException, Trajectory, TrajectoryGroup
from art.types import Unscored


class Fixed(Reward):
    """Gives what it was told to give."""

    def __init__(self, *scores: Score, name: str = "fixed") -> None:
        self.name, self.given = name, scores

    async def scores(self, group: TrajectoryGroup) -> Sequence[Score]:
        return self.given


class Failing(Reward):
    name = "failing"

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def scores(self, group: TrajectoryGroup) -> Sequence[Score]:
        raise self.error


class MailTrajectory(Trajectory):
    """A subclass with a field that must be given."""

    mailbox: str


def full() -> MailTrajectory:
    return MailTrajectory(
        mailbox="inbox",
        messages_and_choices=[{"role": "user", "content": "hello"}],
        tools=[{"type": "function", "function": {"name": "look"}}],
        additional_histories=[History(messages_and_choices=[{"role": "user", "content": "sub"}])],
        reward=0.25,
        initial_policy_version=3,
        final_policy_version=4,
        metrics={"turns": 2},
        metadata={"scenario": {"rooms": ["a", {"key": None}]}},
        logs=["first"],
        start_time=datetime(2024, 1, 2, 3, 4),
        rollout_id="r-1",
    )


async def test_everything_else_of_trajectory_and_group_is_kept() -> None:
    group = TrajectoryGroup(
        [full()],
        exceptions=[ValueError("lost")],
        metadata={"days": [1, 2]},
        metrics={"took": 2.0},
        logs=["began"],
    )
    before = group.model_dump()
    scored = await Fixed(Score(value=0.75, explanation="good", metrics={"clarity": 1.0})).score_group(group)
    kept = scored.trajectories[0]
    assert isinstance(kept, MailTrajectory)
    assert kept.reward == 0.75
    assert kept.metrics == {"turns": 2, "independent_reward": 0.25, "reward/fixed": 0.75, "clarity": 1.0}
    assert kept.logs == ["first", "fixed explanation: good"]
    changed = {"reward", "metrics", "logs"}
    for name in MailTrajectory.model_fields.keys() - changed:
        assert getattr(kept, name) == getattr(group.trajectories[0], name), name
    assert kept.start_time == datetime(2024, 1, 2, 3, 4) and kept.rollout_id == "r-1"
    assert [error.message for error in scored.exceptions] == ["lost"]
    assert isinstance(scored.exceptions[0], PydanticException)
    assert (scored.metadata, scored.metrics, scored.logs) == ({"days": [1, 2]}, {"took": 2.0}, ["began"])
    assert group.model_dump() == before
    kept.messages_and_choices.append({"role": "user", "content": "more"})
    kept.metadata["scenario"]["rooms"][1]["key"] = "changed"
    scored.metadata["days"].append(3)
    kept.turn_rewards["s-1"] = kept.turn_values["s-1"] = 1.0
    kept.turn_states["s-1"] = "hall"
    assert group.model_dump() == before


async def test_a_frozen_trajectory_can_be_scored() -> None:
    class Frozen(Trajectory, frozen=True):
        pass

    scored = await Fixed(Score(value=1.0)).score_group(TrajectoryGroup([Frozen()]))
    assert scored.trajectories[0].reward == 1.0


async def test_an_unscored_trajectory_says_why_and_has_no_number() -> None:
    group = TrajectoryGroup([Trajectory(reward=Unscored("no judge yet"))])
    kept = (await Fixed(Score(value=Unscored("judge refused"))).score_group(group)).trajectories[0]
    assert kept.reward == Unscored("judge refused")
    assert kept.metrics == {}
    assert kept.logs == ["fixed gave no score: judge refused"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
async def test_what_is_no_number_is_unscored(value: float) -> None:
    scored = await Fixed(Score(value=value)).score_group(TrajectoryGroup([Trajectory()]))
    assert isinstance(scored.trajectories[0].reward, Unscored)
    assert repr(value) in scored.trajectories[0].reward.reason


async def test_another_number_of_scores_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'fixed' gave 1 scores for 2 trajectories"):
        await Fixed(Score(value=1.0)).score_group(TrajectoryGroup([Trajectory(), Trajectory()]))


@pytest.mark.parametrize("error", [LlmUnavailableError("no answer"), VerifierError("no process")])
async def test_a_source_that_failed_leaves_the_group_unscored(error: Exception) -> None:
    scored = await Failing(error).score_group(TrajectoryGroup([Trajectory(), Trajectory()]))
    assert [type(t.reward) for t in scored] == [Unscored, Unscored]
    assert str(error) in str(scored.trajectories[0].reward)


async def test_a_spent_budget_stops_the_run() -> None:
    with pytest.raises(BudgetExceededError):
        await Failing(BudgetExceededError("spent")).score_group(TrajectoryGroup([Trajectory()]))


async def test_an_empty_group_asks_nobody() -> None:
    scored = await Failing(RuntimeError("asked")).score_group(TrajectoryGroup([], exceptions=[ValueError()]))
    assert len(scored) == 0 and len(scored.exceptions) == 1


async def test_figures_of_a_group_are_kept_with_it() -> None:
    class Watched(Fixed):
        async def judge(self, group: TrajectoryGroup) -> GroupScores:
            return GroupScores(scores=self.given, metrics={"judge/agreement": 0.5}, notes=("looked twice",))

    scored = await Watched(Score(value=1.0)).score_group(TrajectoryGroup([Trajectory()], metrics={"a": 1}))
    assert scored.metrics == {"a": 1, "judge/agreement": 0.5}
    assert scored.logs == ["looked twice"]
    summed = await (0.5 * Watched(Score(value=1.0))).score_group(TrajectoryGroup([Trajectory()]))
    assert summed.metrics == {"judge/agreement": 0.5} and summed.logs == ["looked twice"]


async def test_a_reward_scores_groups_as_they_are_gathered() -> None:
    async def rollout(turn: int) -> Trajectory:
        return Trajectory(reward=float(turn))

    fixed = Fixed(Score(value=0.1), Score(value=0.2))
    groups = await art.gather_trajectory_groups(
        [TrajectoryGroup(rollout(turn) for turn in range(2))], pbar_desc=None, after_each=fixed.score_group
    )
    assert [t.reward for t in groups[0]] == [0.1, 0.2]
    assert [t.metrics["independent_reward"] for t in groups[0]] == [0.0, 1.0]


async def test_what_several_judges_said_is_one_note_and_plain_rewards_leave_none() -> None:
    def said(source: str, score: float | None, order: int | None = None) -> Judgement:
        words, asked = f"{source} thinks", "Be kind."
        return Judgement(source=source, score=score, words=words, order=order, question=asked)

    first = Fixed(*(Score(value=0.5, judgements=(said("a", 0.5, place),)) for place in (1, 0)), name="a")
    other = Fixed(*(Score(value=1.0, judgements=(said("b", None),)) for _ in range(2)), name="b")
    group = TrajectoryGroup([full(), full()])
    alone = await first.score_group(group)
    notes = [one._judge for one in alone]
    assert [(note.order, note.words, note.question) for note in notes if note] == [
        (1, "a thinks", "Be kind."),
        (0, "a thinks", None),
    ]
    assert [note.price_usd for note in notes if note] == [None, None], "nobody was asked over a channel"
    both = await (0.5 * first + 0.5 * other + Fixed(*[Score(value=0.0)] * 2)).score_group(group)
    note = both.trajectories[0]._judge
    assert note is not None and note.words == "a: a thinks\nb: b thinks" and note.score == 0.5
    assert note.question == "a: Be kind.\n\nb: Be kind."
    assert group.trajectories[0]._judge is None
    plain = await Fixed(*[Score(value=0.0)] * 2).score_group(group)
    assert [one._judge for one in plain] == [None, None]
