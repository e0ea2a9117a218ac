from __future__ import annotations

import pytest

import art
from art.metrics_taxonomy import (
    METRIC_SECTIONS,
    METRIC_SPLITS,
    TRAIN_GRADIENT_STEPS_KEY,
    TrajectoryBatchSummary,
    average_metric_samples,
    average_metrics,
    build_data_metrics_from_summary,
    build_training_summary_metrics,
    canonical_metrics,
    canonical_name,
    cumulative_name,
    is_managed,
    summarize_trajectory_groups,
)
from art.tracking.names import route, spellings


def test_sections_and_splits():
    assert METRIC_SPLITS == {"train", "val", "test"}
    assert {
        "reward",
        "loss",
        "offpolicy",
        "pipeline",
        "throughput",
        "costs",
        "time",
        "data",
        "system",
        "objective",
        "pipeline_settings",
        "queue",
        "sample_efficiency",
        "discarded",
        "vllm",
    } == METRIC_SECTIONS
    assert TRAIN_GRADIENT_STEPS_KEY == "data/step_num_gradient_steps"


@pytest.mark.parametrize(
    ("name", "split", "routed"),
    [
        ("acc", "val", "val/acc"),
        ("reward", "val", "val/reward"),
        ("reward/format", "val", "reward/format"),
        ("loss/train", "train", "loss/train"),
        ("test/acc", "train", "test/acc"),
        ("queue/groups", "train", "queue/groups"),
        ("tools/calls", "train", "train/tools/calls"),
        ("loss/train", "discarded", "discarded/loss/train"),
    ],
)
def test_routes(name, split, routed):
    assert route(name, split) == routed


@pytest.mark.parametrize(
    ("name", "managed", "sum_over_the_run"),
    [
        ("costs/train/judge", True, "costs/cum/train/judge"),
        ("time/step_trainer_s", True, "time/cum/trainer_s"),
        ("data/step_num_scenarios", True, "data/cum/num_scenarios"),
        ("throughput/step_actor_idle_s", True, "throughput/cum/actor_idle_s"),
    ],
)
def test_what_adds_up(name, managed, sum_over_the_run):
    assert is_managed(name) is managed and cumulative_name(name) == sum_over_the_run


@pytest.mark.parametrize(
    "name", ["data/fill", "loss/train", "time/wall_clock_sec", "costs_train", "step_x", "costs/cum/gpu"]
)
def test_what_does_not(name):
    assert not is_managed(name)


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("val/reward", ("val/reward", "reward/val")),
        ("reward/val", ("reward/val", "val/reward")),
        ("val/judge/ruler", ("val/judge/ruler", "judge/ruler/val")),
        ("judge/ruler/val", ("judge/ruler/val", "val/judge/ruler")),
        ("time/wall_clock_sec", ("time/wall_clock_sec",)),
        ("time/step_rollout_s", ("time/step_rollout_s", "time/step_actor_s")),
        ("data/cum/actor_tokens", ("data/cum/actor_tokens", "data/cum/rollout_tokens")),
        ("val", ("val",)),
        ("val/", ("val/",)),
    ],
)
def test_spellings_of_one_metric(name, names):
    assert spellings(name) == names


@pytest.mark.parametrize(
    ("older", "name"),
    [
        ("policy_loss", "loss/train"),
        ("train/loss", "loss/train"),
        ("train/kl_div", "loss/kl_div"),
        ("num_trainable_tokens", "data/step_trainer_tokens"),
        ("train/num_groups_trainable", "data/step_num_groups_trainable"),
        ("group_metric_judge", "group_judge"),
        ("tokens_per_second", None),
        ("acc", "acc"),
        ("loss/train", "loss/train"),
        ("train/acc", "train/acc"),
    ],
)
def test_names_of_older_versions(older, name):
    assert canonical_name(older) == name


def test_todays_name_wins():
    assert canonical_metrics({"loss/train": 1.0, "policy_loss": 2.0, "tokens_per_second": 3.0}) == {
        "loss/train": 1.0
    }


def test_averages_of_gradient_steps():
    samples = [{"loss/train": 1.0, TRAIN_GRADIENT_STEPS_KEY: 2}, {"loss/train": 3.0, "loss/kl": 1.0}]
    assert average_metrics(samples) == {"loss/train": 2.0, "loss/kl": 1.0, TRAIN_GRADIENT_STEPS_KEY: 2.0}
    with pytest.raises(ValueError, match="must be invariant, the same"):
        average_metrics([{TRAIN_GRADIENT_STEPS_KEY: 1}, {TRAIN_GRADIENT_STEPS_KEY: 2}])


def test_a_batch_in_numbers():
    rewards = [[1.0, 0.0], [1.0, 1.0], [1.0, art.Unscored("x")], []]
    groups = [
        art.TrajectoryGroup(
            [*(art.Trajectory(reward=reward) for reward in group), ValueError("lost")],
            metadata={"scenario_id": f"s{index % 3}"},
        )
        for index, group in enumerate(rewards)
    ]
    summary = summarize_trajectory_groups(iter(groups))
    assert summary == TrajectoryBatchSummary(
        num_scenarios=4,
        num_trajectories=10,
        num_groups_submitted=4,
        num_groups_trainable=1,
        scenario_ids=["s0", "s1", "s2"],
    )
    counts = {
        "data/step_num_scenarios": 4.0,
        "data/step_num_trajectories": 10.0,
        "data/step_num_groups_submitted": 4.0,
    }
    assert build_data_metrics_from_summary(summary, include_trainable_groups=False) == counts
    assert build_training_summary_metrics(summary, include_trainable_groups=True) == {
        **counts,
        "data/step_num_groups_trainable": 1.0,
    }


def test_samples_of_one_step_agree_on_its_number_of_updates():
    samples = [{"loss/train": 1.0, "loss/grad_norm": 0.5}, {"loss/train": 0.5}, {"loss/grad_norm": 1.0}]
    assert average_metric_samples(samples) == {"loss/train": 0.75, "loss/grad_norm": 0.75}
    with pytest.raises(ValueError, match="must be invariant"):
        average_metric_samples([{TRAIN_GRADIENT_STEPS_KEY: 2.0}, {TRAIN_GRADIENT_STEPS_KEY: 3.0}])
