from __future__ import annotations

import pytest

from art.metrics_taxonomy import (
    METRIC_SECTIONS,
    METRIC_SPLITS,
    TRAIN_GRADIENT_STEPS_KEY,
    average_metrics,
    canonical_metrics,
    canonical_name,
    cumulative_name,
    is_managed,
)
from art.tracking.names import route


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


@pytest.mark.parametrize("name", ["data/fill", "loss/train", "time/wall_clock_sec", "costs_train", "step_x"])
def test_what_does_not(name):
    assert not is_managed(name)


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
    with pytest.raises(ValueError, match="must be the same"):
        average_metrics([{TRAIN_GRADIENT_STEPS_KEY: 1}, {TRAIN_GRADIENT_STEPS_KEY: 2}])
