from __future__ import annotations

import asyncio
import json
import math
import os
from datetime import datetime

import pytest

import art
from art.errors import ConfigurationError
from art.utils.trajectory_logging import read_trajectory_groups


@pytest.fixture
def model(tmp_path) -> art.Model:
    return art.Model(name="agent", project="games", base_path=str(tmp_path), report_metrics=[])


def rows(model: art.Model) -> list[dict]:
    return [json.loads(line) for line in (model._folder() / "history.jsonl").read_text().splitlines()]


def logged(model: art.Model, split: str, step: int) -> list[art.TrajectoryGroup]:
    path = model._folder() / "trajectories" / split / f"{step:04d}.parquet"
    return read_trajectory_groups(path)


def group(*rewards: float, **fields) -> art.TrajectoryGroup:
    return art.TrajectoryGroup([art.Trajectory(reward=reward) for reward in rewards], **fields)


async def test_the_row_of_the_reference_key_by_key(model):
    worked_example = art.TrajectoryGroup(
        [art.Trajectory(reward=1, metrics={"acc": 1}), art.Trajectory(reward=0, metrics={"acc": 0})],
        metrics={"judge": 0.4},
        metadata={"scenario_id": "a"},
    )
    await model.log([worked_example], split="val", step=3)
    (row,) = rows(model)
    assert row.pop("recorded_at") and row.pop("time/wall_clock_sec") >= 0
    assert row == {
        "val/reward": 0.5,
        "val/exception_rate": 0.0,
        "val/acc": 0.5,
        "val/group_judge": 0.4,
        "val/reward_max": 1.0,
        "val/reward_std_dev": 0.5,
        "val/all_good_groups": 0.0,
        "val/all_bad_groups": 0.0,
        "data/step_num_scenarios": 1,
        "data/step_num_trajectories": 2,
        "data/step_num_groups_submitted": 1,
        "data/cum/num_scenarios": 1,
        "data/cum/num_trajectories": 2,
        "data/cum/num_groups_submitted": 1,
        "data/cum/num_unique_scenarios": 1,
        "training_step": 3,
        "step": 3,
    }
    (read,) = logged(model, "val", 3)
    assert [t.reward for t in read] == [1, 0] and read.metadata == {"scenario_id": "a"}


async def test_unscored_rollouts_are_in_no_mean(model):
    scored = [art.Trajectory(reward=1), art.Trajectory(reward=0)]
    await model.log([*scored, art.Trajectory(reward=art.Unscored("x")), ValueError("y")], step=0)
    await model.log([art.Trajectory(reward=math.nan)], step=1)  # no more a reward than none
    first, second = rows(model)
    assert first["val/reward"] == 0.5 and first["val/unscored_rate"] == pytest.approx(1 / 3)
    assert first["val/exception_rate"] == 0.25
    assert "val/reward" not in second and second["val/unscored_rate"] == 1.0


async def test_metrics_only_rows_and_routes(model):
    numbers = {"loss/train": 1.0, "acc": 2, "test/acc": 3, "bad": float("nan"), "data/step_bad": float("nan")}
    await model.log(split="train", metrics=numbers, step=1)
    await model.log(split="discarded", metrics={"loss/train": 1.0}, step=1)
    await model.log(split="train", step=1)
    first, second = rows(model)
    assert first["loss/train"] == 1.0 and first["train/acc"] == 2.0 and first["test/acc"] == 3.0
    assert "train/bad" not in first and "data/step_bad" not in first
    assert second["discarded/loss/train"] == 1.0
    assert not (model._folder() / "trajectories").exists()


async def test_empty_metrics_write_what_waits(model):
    await model.log(split="val", metrics={}, step=0)  # nothing waits
    await model.log(split="discarded", metrics={}, step=0)
    assert not (model._folder() / "history.jsonl").exists()
    model.metrics_builder("train").add_cost("train/judge", 0.25)
    model.metrics_builder("train").add_data(step_num_scenarios=2)
    await model.log(trajectories=None, split="train", step=1)
    await model.log(trajectories=None, split="val", metrics={}, step=1)  # the amounts are of the split train
    assert not (model._folder() / "history.jsonl").exists()
    await model.log(trajectories=None, split="train", metrics={}, step=1)
    await model.log(trajectories=None, split="train", metrics={}, step=2)
    (row,) = rows(model)
    assert row["training_step"] == 1 and row["costs/train/judge"] == 0.25 and row["costs/cum/all"] == 0.25
    assert row["data/step_num_scenarios"] == 2


async def test_a_sum_that_is_given_is_recorded_as_it_is(model):
    given = {"costs/cum/train/prefill": 2.0, "costs/cum/gpu": 7.0, "data/cum/num_scenarios": 50}
    await model.log(split="train", metrics={**given, "costs/gpu": 0.5}, step=1)
    await model.log(split="train", metrics={**given, "costs/gpu": 0.5}, step=2)
    await model.log(split="train", metrics={"costs/gpu": 0.5}, step=3)
    first, second, third = rows(model)
    assert {name: first[name] for name in given} == {name: second[name] for name in given} == given
    assert first["costs/all"] == 0.5 and "costs/cum" not in first and "costs/cum/cum/gpu" not in second
    assert third["costs/cum/gpu"] == third["costs/cum/all"] == 1.5  # the run's own sum goes on


async def test_averages_are_over_trajectories_and_spread_over_groups(model):
    groups = [group(1, 1, 0, 0), group(1), group(), group(0, 1, metrics={"judge": 2})]
    groups[2].metrics["judge"] = 100  # a group without trajectories has no say
    await model.log(groups, split="train", step=1)
    (row,) = rows(model)
    assert row["train/reward"] == pytest.approx(4 / 7) and row["train/reward_std_dev"] == 0.5
    assert row["train/group_judge"] == 2
    assert row["data/step_num_groups_submitted"] == 4 and row["data/step_num_groups_trainable"] == 2


async def test_an_empty_list_is_a_row_and_a_file(model):
    await model.log([], step=2)
    (row,) = rows(model)
    assert row["val/reward_std_dev"] == 0 and "val/reward" not in row and "val/exception_rate" not in row
    assert row["data/step_num_trajectories"] == 0
    assert logged(model, "val", 2) == []


async def test_exceptions_count(model):
    await model.log([ValueError("x"), ValueError("y")], step=0)
    (row,) = rows(model)
    assert row["val/exception_rate"] == 1 and row["data/step_num_trajectories"] == 2
    assert "val/reward" not in row
    (read,) = logged(model, "val", 0)
    assert [failure.message for failure in read.exceptions] == ["x", "y"]


async def test_a_second_call_for_a_step_keeps_the_first_ones_trajectories(model):
    await asyncio.gather(*(model.log([group(reward)], split="val", step=1) for reward in range(4)))
    assert sorted(t.reward for read in logged(model, "val", 1) for t in read) == [0, 1, 2, 3]
    assert sorted(row["val/reward"] for row in rows(model)) == [0, 1, 2, 3]
    assert rows(model)[-1]["data/cum/num_trajectories"] == 4


async def test_metrics_that_add_up_are_summed_over_rollouts(model):
    spent = [
        art.Trajectory(reward=1, metrics={"costs/judge": 0.25, "data/step_calls": 2, "acc": 1}) for _ in "ab"
    ]
    await model.log([art.TrajectoryGroup(spent, metrics={"costs/judge": 1.0})], split="val", step=1)
    await model.log(split="train", metrics={"costs/gpu": 2.0, "time/step_trainer_s": 4.0}, step=2)
    first, second = rows(model)
    assert first["costs/judge"] == 1.5 and first["data/step_calls"] == 4 and first["val/acc"] == 1
    assert first["costs/all"] == 1.5 and first["data/cum/calls"] == 4
    assert not {"val/costs/judge", "val/data/step_calls", "val/group_costs/judge"} & first.keys()
    assert (
        second["costs/all"] == 2.0 and second["costs/cum/all"] == 3.5 and second["time/cum/trainer_s"] == 4.0
    )
    assert "costs/cum/judge" not in second  # nothing was added to it


async def test_a_count_that_is_given_is_not_counted_again(model):
    await model.log([group(1, 0)], split="train", metrics={"data/step_num_trajectories": 7}, step=1)
    (row,) = rows(model)
    assert row["data/step_num_trajectories"] == 7 and row["data/cum/num_trajectories"] == 7


async def test_a_split_of_ones_own_prefixes_everything(model):
    rollout = art.Trajectory(reward=1, metrics={"costs/judge": 0.5})
    model.metrics_builder().add_cost("later", 1.0)
    await model.log([rollout], split="versus-self", step=1)
    await model.log([group(1)], split="val", step=1)
    first, second = rows(model)
    assert first["versus-self/reward"] == 1 and first["versus-self/costs/judge"] == 0.5
    own = {"training_step", "time/wall_clock_sec", "step", "recorded_at"}
    assert all(name.startswith("versus-self/") for name in first.keys() - own)
    assert second["costs/cum/all"] == 1.0  # what waited came with the first row that can hold it


async def test_a_metric_called_reward_does_not_mix_into_the_reward(model):
    await model.log([art.Trajectory(reward=1, metrics={"reward": 100, "exception_rate": 7})], step=1)
    (row,) = rows(model)
    assert row["val/reward"] == 1 and row["val/exception_rate"] == 0
    assert row["val/metric_reward"] == 100 and row["val/metric_exception_rate"] == 7


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"trajectories": ["text"]}, "trajectories must be an iterable of TrajectoryGroup"),
        ({"trajectories": [group(1), art.Trajectory()]}, "trajectories must be"),
        ({"metrics": {"costs_prefill": 1}}, "Legacy cost keys like 'costs_prefill' are no longer supported"),
        ({"trajectories": [art.Trajectory(metrics={"costs_x": 1})]}, "Legacy cost keys"),
        ({"metrics": {"acc": "good"}}, "metric 'acc' is 'good', which is no number"),
        ({"metrics": {"costs/a": 1, "costs/a/b": 1}}, "as a leaf"),
        ({"metrics": {"costs/all": 1}}, "costs/all"),
        ({"metrics": {"acc": 1}, "split": "../val"}, "split '../val'"),
        ({"metrics": {"acc": 1}, "split": "a/b"}, "split 'a/b'"),
        ({"metrics": {"acc": 1}, "split": ".."}, "split"),
        ({"metrics": {"acc": 1}, "split": ""}, "split ''"),
    ],
)
async def test_what_is_refused_leaves_no_trace(model, arguments, text):
    with pytest.raises((TypeError, ValueError), match=text.replace("(", r"\(")):
        await model.log(**{"step": 0, **arguments})
    assert [path.name for path in model._folder().rglob("*") if path.is_file()] == []
    await model.log([group(1)], step=1)
    assert rows(model)[0]["data/cum/num_scenarios"] == 1


async def test_a_failed_write_of_trajectories_counts_nothing(model, monkeypatch):
    real = os.replace

    def dies(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "replace", dies)
    with pytest.raises(OSError):
        await model.log([group(1, 0)], step=1)
    monkeypatch.setattr(os, "replace", real)
    await model.log([group(1, 0)], step=1)
    (row,) = rows(model)
    assert row["data/cum/num_trajectories"] == 2


async def test_sums_go_on_in_the_next_process(tmp_path):
    for step in range(3):
        model = art.Model(name="agent", project="games", base_path=str(tmp_path), report_metrics=[])
        assert model.read_state() in (None, {"epoch": step - 1})
        scenario = group(1, 0, metadata={"scenario_id": step % 2})
        await model.log([scenario], split="train", metrics={"costs/gpu": 1}, step=step)
        model.overwrite_state({"epoch": step})
    last = rows(model)[-1]
    assert last["costs/cum/gpu"] == 3 and last["data/cum/num_trajectories"] == 6
    assert last["data/cum/num_unique_scenarios"] == 2
    kept = json.loads((model._folder() / "state.json").read_text())
    assert set(kept) == {"epoch", "_metrics_builder_state"}
    assert kept["_metrics_builder_state"]["unique_scenario_ids"] == ["0", "1"]
    assert model.merge_state({"seed": 1}) == {"epoch": 2, "seed": 1}


async def test_costs_wait_for_a_row_of_their_context(model):
    model.metrics_builder("eval").add_cost("eval/judge", 1.0)
    model.metrics_builder("train").add_cost("train/judge", 2.0)
    model.metrics_builder("side").add_cost("side/judge", 4.0)
    model.metrics_builder().add_cost("rest", 8.0)
    await model.log([group(1, 0)], split="train", step=1)
    await model.log([group(1, 0)], split="test", step=1)
    first, second = rows(model)
    assert first["costs/train/judge"] == 2 and first["costs/all"] == 14 and "costs/eval" not in first
    assert second["costs/eval"] == 1 and second["costs/all"] == 1 and second["costs/cum/all"] == 15


async def test_a_name_is_an_amount_or_a_group_in_all_contexts(model):
    model.metrics_builder("train").add_cost("judge/tokens", 1.0)
    with pytest.raises(ValueError, match="ancestor of 'costs/judge/tokens'"):
        model.metrics_builder().add_cost("judge", 1.0)
    with pytest.raises(ValueError, match="ancestor of 'costs/judge/tokens'"):
        await model.log(metrics={"costs/judge": 1.0}, step=1)
    await model.log(metrics={"acc": 1.0}, split="train", step=1)
    assert rows(model)[0]["costs/judge"] == 1.0


async def test_a_copy_has_a_log_of_its_own(model, tmp_path):
    await model.log([group(1, 0)], split="val", step=1)
    for copied in (model.model_copy(deep=True), model.model_copy(update={"name": "shallow"})):
        copied.name = copied.name if copied.name == "shallow" else "deep"
        await copied.log([group(1)], split="val", step=1)
        assert rows(copied)[0]["data/cum/num_trajectories"] == 1
    await model.log([group(1, 0)], split="val", step=2)
    assert rows(model)[1]["data/cum/num_trajectories"] == 4


async def test_a_folder_outside_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="no name of a folder"):
        art.Model(name="../x", project="p", base_path=str(tmp_path))
    with pytest.raises(ConfigurationError, match="leads elsewhere"):
        await art.Model(name="x", project="../p", base_path=str(tmp_path)).log(metrics={"acc": 1})


async def test_a_trainable_model_without_a_backend_logs_at_the_newest_checkpoint_it_finds(tmp_path):
    model = art.TrainableModel(
        name="m", project="p", base_model="b", base_path=str(tmp_path), report_metrics=[]
    )
    await model.log(metrics={"acc": 1})
    (model._folder() / "checkpoints" / "0004").mkdir(parents=True)
    await model.log(metrics={"acc": 1})
    assert [row["step"] for row in rows(model)] == [0, 4]


async def test_two_programs_add_to_the_same_sums(tmp_path):
    trainer, evaluator = (
        art.Model(name="agent", project="games", base_path=str(tmp_path), report_metrics=[]) for _ in "ab"
    )
    for step in range(3):
        await trainer.log([group(1, 0)], split="train", metrics={"costs/gpu": 1}, step=step)
        await evaluator.log([group(1)], split="val", step=step)
    assert rows(trainer)[-1]["data/cum/num_trajectories"] == 9
    assert rows(trainer)[-2]["costs/cum/gpu"] == 3


async def test_sums_of_another_run_can_be_loaded(model):
    builder = model.metrics_builder()
    builder.load_state_dict({"cum_state": {"costs/cum/gpu": 10.0, "costs/cum/all": 10.0}})
    for step in range(2):
        await model.log(metrics={"costs/gpu": 1}, split="train", step=step)
    assert rows(model)[1]["costs/cum/gpu"] == 12


async def test_the_time_of_a_row_has_its_zone(model):
    await model.log(metrics={"x": 1}, split="val", step=0)
    (row,) = rows(model)
    assert datetime.fromisoformat(row["recorded_at"]).utcoffset() is not None
