"""What a list of groups may hold on its way to the server."""

from __future__ import annotations

import logging

import pydantic
import pytest
from openai.types.chat.chat_completion import Choice

import art
from art.client.requests.train_request import train_groups
from art.errors import TokenMismatchError
from art.tracking.averages import as_groups
from art.trajectories import gathered_groups


def attempt(sample: str) -> art.Trajectory:
    message = {"role": "assistant", "content": "hi"}
    choice = Choice.construct(index=0, finish_reason="stop", message=message, sample_id=sample)
    return art.Trajectory(messages_and_choices=[{"role": "user", "content": "x"}, choice], reward=1.0)


def test_groups_of_any_kind_of_iterable_and_none(caplog: pytest.LogCaptureFixture) -> None:
    given = [
        art.TrajectoryGroup((attempt("a"), attempt("b")), metadata={"scenario_id": "s"}),
        None,  # a judge failed and gave no group
        art.TrajectoryGroup(attempt(sample) for sample in "cd"),
        art.TrajectoryGroup([attempt("e"), ValueError("x")]),
    ]
    with caplog.at_level(logging.WARNING, logger="art"):
        groups = train_groups(given)
    assert [[t.samples for t in group.trajectories] for group in groups] == [
        [["a"], ["b"]],
        [["c"], ["d"]],
        [["e"]],
    ]
    assert [group.failed for group in groups] == [0, 0, 1]
    assert "group 1 is None and is left out" in caplog.text
    assert as_groups(given) == [given[0], given[2], given[3]]


def test_a_list_of_trajectories_is_a_group() -> None:
    given = [[attempt("a"), attempt("b")], art.TrajectoryGroup([attempt("c")]), (attempt("d"), ValueError())]
    found = gathered_groups(given, "train()")
    assert [[t.samples for t in group.trajectories] for group in train_groups(found)] == [
        [["a"], ["b"]],
        [["c"]],
        [["d"]],
    ]
    assert found[1] is given[1] and len(found[2].exceptions) == 1
    assert [len(group) for group in as_groups(given)] == [2, 1, 1]
    for other in ([{"role": "user"}], "text", None):
        assert gathered_groups([other], "train()") == [other]
    with pytest.raises(TypeError, match="group 0 is a list, not a TrajectoryGroup"):
        train_groups(gathered_groups([[attempt("a"), "text"]], "train()"))


def test_choices_as_litellm_keeps_them() -> None:
    class Choices(pydantic.BaseModel):
        finish_reason: str = "stop"
        index: int = 0
        message: dict[str, str] = {"role": "assistant", "content": "hi"}
        provider_specific_fields: dict[str, str | int] | None = None

    choice = Choices(provider_specific_fields={"sample_id": "s1", "step": 0})
    trajectory = art.Trajectory(messages_and_choices=[choice, choice.model_dump() | {"sample_id": "s2"}])
    (group,) = train_groups([art.TrajectoryGroup([trajectory])])
    assert group.trajectories[0].samples == ["s1", "s2"]
    trajectory.messages_and_choices[0] = Choices()
    with pytest.raises(TokenMismatchError, match="turn 0: no 'sample_id'"):
        train_groups([art.TrajectoryGroup([trajectory])])


def test_what_is_no_group_is_refused() -> None:
    with pytest.raises(TypeError, match="group 0 is a Trajectory, not a TrajectoryGroup") as caught:
        train_groups([attempt("a" * 9000)])
    assert len(str(caught.value)) < 200  # not the whole conversation
    assert "art.TrajectoryGroup([...])" in str(caught.value)


def test_what_is_known_of_the_judge_goes_to_the_server_and_nothing_else_of_the_metrics() -> None:
    metrics = {"judge/agreement": 0.5, "judge/alarm": True, "judge/holdout": float("nan"), "acc": 1.0}
    (group,) = train_groups([art.TrajectoryGroup([attempt("a")], metrics=metrics)])
    assert group.judge == {"judge/agreement": 0.5, "judge/alarm": 1.0}
