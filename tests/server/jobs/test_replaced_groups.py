"""From a program's groups to the sheet and the record of a step: replaced, weighed and stored ones."""

from __future__ import annotations

import copy
import dataclasses
from array import array
from pathlib import Path
from typing import Any

import pytest
from ledger_rows import nano, record
from openai.types.chat.chat_completion import Choice

import art
from art.batch.build import build_batch
from art.batch.encode import encode_batch
from art.client.requests.train_outcome import check_sheet
from art.client.requests.train_request import job_request, train_groups
from art.server.jobs.step_files import rollout_records
from art.server.jobs.train_rows import group_rows
from art.server.ledger.schema import SampleRecord
from art.tracking.trajectory_lines import append_lines
from art.tracking.trajectory_log import append_groups, read_trajectory_groups
from art.wire.jobs import TrainGroup, TrainJobRequest
from art.wire.records import write_pieces
from art.wire.rollout_record import SheetRow, sum_of_lines
from art.wire.training import TrainRequest


def trajectory(sample: str, reward: Any, **fields: Any) -> art.Trajectory:
    message = {"role": "assistant", "content": sample}
    choice = Choice.construct(index=0, finish_reason="stop", message=message, sample_id=sample)
    turns = [{"role": "user", "content": "q"}, choice]
    return art.Trajectory(messages_and_choices=turns, reward=reward, rollout_id=f"r-{sample}", **fields)


def group(name: str, *rewards: Any, **fields: Any) -> art.TrajectoryGroup:
    return art.TrajectoryGroup(
        [trajectory(f"{name}{place}", reward) for place, reward in enumerate(rewards)], **fields
    )


def samples_of(request: TrainJobRequest) -> dict[str, SampleRecord]:
    """What the ledger has: each sample with a last token of its own."""
    groups = [*request.groups, *request.discarded]
    names = [name for group in groups for one in group.trajectories for name in one.samples]
    return {
        name: dataclasses.replace(
            record("games/player@7", 7), sample_id=name, completion_ids=array("i", [2 + place])
        )
        for place, name in enumerate(names)
    }


def requested(groups: list[art.TrajectoryGroup], **options: Any) -> TrainJobRequest:
    """As `RemoteBackend.train` makes it."""
    sent = train_groups(groups)
    others = [one for group in groups for one in group._replaced]
    aside = train_groups(others, after=sent, replaced=True)
    return job_request("job", sent, aside, None, options)


async def test_replaced_groups_are_on_the_sheet_by_their_reason() -> None:
    async def made(one: art.TrajectoryGroup) -> art.TrajectoryGroup:
        return one

    flat = group("flat", 1.0, 1.0, art.Unscored("no judge"))
    flat.exceptions.extend(art.TrajectoryGroup([OSError("no world")]).exceptions)
    further = [made(group("again", 0.0, 0.0)), made(group("good", 0.0, 1.0))]
    groups = await art.gather_trajectory_groups(
        [made(group("first", 0.0, 1.0)), made(flat)], refill=further, pbar_desc=None
    )
    request = TrainJobRequest.model_validate_json(write_pieces(requested(groups)))
    assert [one.replaced for one in [*request.groups, *request.discarded]] == [False, False, True, True]
    rows = group_rows(request, samples_of(request), nano())
    batch = build_batch(rows, algorithm=request.algorithm)
    check_sheet(batch.sheet, [*request.groups, *request.discarded])
    assert batch.sheet.started == SheetRow(rollouts=10, tokens=9)
    assert batch.sheet.fates == {
        "trained": SheetRow(rollouts=4, tokens=4),
        "replaced": SheetRow(rollouts=4, tokens=4),
        "unscored": SheetRow(rollouts=1, tokens=1),
        "failed": SheetRow(rollouts=1, tokens=0),
    }
    records = list(rollout_records(request, rows, batch))
    assert sum_of_lines(records) == batch.sheet.fates
    assert [one.rollout for one in records if one.fate == "replaced"] == [
        "r-flat0",
        "r-flat1",
        "r-again0",
        "r-again1",
    ]


def test_a_weight_is_on_the_wire_and_in_the_record_and_only_where_there_is_one() -> None:
    request = requested([group("a", 0.0, 1.0, weight=2.5), group("b", 0.0, 1.0)])
    assert [one.weight for one in request.groups] == [2.5, 1.0]
    assert '"weight"' not in request.groups[1].model_dump_json()
    rows = group_rows(request, samples_of(request), nano())
    records = list(rollout_records(request, rows, build_batch(rows)))
    assert [one.weight for one in records] == [2.5, 2.5, 1.0, 1.0]
    assert '"weight":2.5' in records[0].line() and '"weight"' not in records[2].line()


@pytest.mark.parametrize("weight", [-1.0, 0.0, float("nan"), float("inf"), "heavy"])
def test_a_weight_that_is_none_is_refused_before_a_rollout_runs(weight: Any) -> None:
    begun: list[int] = []

    async def rollout() -> art.Trajectory:
        begun.append(1)
        return art.Trajectory()

    for rollouts in ([], [rollout(), rollout()]):
        with pytest.raises(ValueError, match="weight"):
            art.TrajectoryGroup(rollouts, weight=weight)
    with pytest.raises(ValueError, match="weight"):
        TrainGroup(trajectories=[], weight=weight)
    assert not begun


async def test_a_group_of_coroutines_has_its_weight() -> None:
    async def rollout() -> art.Trajectory:
        return art.Trajectory()

    made = await art.TrajectoryGroup([rollout()], weight=3)
    assert made.weight == 3
    assert art.TrajectoryGroup.model_validate_json(made.model_dump_json()).weight == 3
    assert copy.copy(made).weight == made.model_copy(deep=True).weight == 3


async def test_a_group_of_a_class_of_its_own_needs_no_weight() -> None:
    class Named(art.TrajectoryGroup):
        def __init__(self, trajectories: Any, *, name: str) -> None:
            super().__init__(trajectories, metadata={"name": name})

    async def rollout() -> art.Trajectory:
        return art.Trajectory()

    assert (await Named([rollout()], name="mine")).metadata == {"name": "mine"}


def stored_groups() -> list[art.TrajectoryGroup]:
    """Rewards of every kind, and one that a program set to NaN."""
    odd = group("odd", 1.0, 0.25)
    odd.trajectories[0].reward = float("nan")
    plain = group("plain", 0.1 + 0.2, 1, -1e-300, art.Unscored("the sandbox is gone"), weight=0.3)
    plain.trajectories[0].metrics["right"] = 0.5
    plain.trajectories[0].turn_values["plain0"] = 0.75
    return [plain, odd, art.TrajectoryGroup([OSError("no world")]), group("good", 0.0, 1.0)]


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_stored_groups_train_what_the_first_ones_trained_bit_for_bit(tmp_path: Path, suffix: str) -> None:
    groups, path = stored_groups(), tmp_path / f"0001.{suffix}"
    (append_groups if suffix == "parquet" else append_lines)(path, groups)
    first, again = (requested(each, algorithm="grpo") for each in (groups, read_trajectory_groups(path)))
    assert write_pieces(again) == write_pieces(first)
    rewards = [[one.reward for one in each.trajectories] for each in again.groups]
    assert rewards == [[0.1 + 0.2, 1.0, -1e-300, None], [None, 0.25], [], [0.0, 1.0]]
    bodies = []
    for request in (first, again):
        batch = build_batch(group_rows(request, samples_of(request), nano()), algorithm=request.algorithm)
        bodies.append(
            encode_batch(
                batch,
                TrainRequest(model="m", step=0, optimizer=request.optimizer, normalizer=batch.normalizer),
            )
        )
        assert batch.sheet.fates["unscored"].rollouts == 2
    assert bodies[0] == bodies[1], "the trainer is given the same bytes"


@pytest.mark.parametrize("line", ['{"reward": null}', "{}"])
def test_a_stored_trajectory_without_a_reward_is_unscored_and_never_0(tmp_path: Path, line: str) -> None:
    lines = tmp_path / "foreign.jsonl"
    lines.write_text(f'{{"trajectories": [{line}, {{"reward": 1.0}}]}}\n')
    (found,) = read_trajectory_groups(lines)
    (sent,) = train_groups([found])
    assert [one.reward for one in sent.trajectories] == [None, 1.0]
    assert sent.trajectories[0].unscored_reason == "the log has no reward"


def test_a_parquet_file_with_an_empty_reward_is_read_as_unscored(tmp_path: Path) -> None:
    import polars

    path = tmp_path / "foreign.parquet"
    append_groups(path, [group("a", 0.5, 1.0)])
    frame = polars.read_parquet(path)
    frame.with_columns(reward=polars.Series([None, 1.0], dtype=polars.Float64)).write_parquet(path)
    (found,) = read_trajectory_groups(path)
    (sent,) = train_groups([found])
    assert [one.reward for one in sent.trajectories] == [None, 1.0]


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -float("inf")])
def test_a_reward_that_is_not_finite_is_unscored_from_the_beginning(reward: float) -> None:
    made = trajectory("s0", reward)
    made.reward_turn(-1, 1.0)  # a part of what is not known is not known
    (sent,) = train_groups([art.TrajectoryGroup([made, trajectory("s1", 1.0), trajectory("s2", 0.0)])])
    assert [one.reward for one in sent.trajectories] == [None, 1.0, 0.0]
    assert sent.trajectories[0].unscored_reason == f"the reward is {reward!r}, not a finite number"
    request = job_request("job", [sent], [], None, {"algorithm": "turn_rloo"})
    sheet = build_batch(group_rows(request, samples_of(request), nano()), algorithm=request.algorithm).sheet
    assert {fate: row.rollouts for fate, row in sheet.fates.items()} == {"unscored": 1, "trained": 2}


def test_the_parts_of_a_reward_come_from_its_metrics() -> None:
    both = trajectory("a", 1.0, metrics={"right": 1.0, "reward/form": True, "turns": 3})
    odd = trajectory("b", 1.0, metrics={"right": float("nan"), "reward/form": 0.5})
    none = trajectory("c", 1.0, metrics={"right": float("inf"), "turns": 3})
    unscored = trajectory("d", art.Unscored("no judge"), metrics={"right": 1.0})
    (sent,) = train_groups(
        [art.TrajectoryGroup([both, odd, none, unscored])], reward_parts={"right": 1.0, "reward/form": 0.5}
    )
    assert [one.parts for one in sent.trajectories] == [
        {"right": 1.0, "reward/form": 1.0},
        {"reward/form": 0.5},
        {},
        {"right": 1.0},
    ]
    assert [one.reward for one in sent.trajectories] == [1.0, 1.0, None, None]
    assert sent.trajectories[2].unscored_reason == (
        "none of the parts of its reward is a finite number: right, reward/form"
    )
    assert "parts" not in train_groups([group("e", 1.0)])[0].trajectories[0].model_dump()
