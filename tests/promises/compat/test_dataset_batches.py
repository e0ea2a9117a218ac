"""A data set in shuffled batches."""

from __future__ import annotations

import random

import pytest

from art.utils import iterate_dataset
from art.utils.iterate_dataset import DatasetBatch


def test_the_order_is_that_of_a_generator_seeded_with_the_epoch() -> None:
    items = [f"item {n}" for n in range(17)]
    batches = list(iterate_dataset(items, groups_per_step=5, num_epochs=3))
    for epoch in range(3):
        order = list(range(17))
        random.seed(epoch)
        random.shuffle(order)
        given = [item for batch in batches if batch.epoch == epoch for item in batch.items]
        assert given == [items[index] for index in order]


def test_the_shared_generator_is_left_alone() -> None:
    random.seed(42)
    expected = [random.random() for _ in range(3)]
    random.seed(42)
    drawn = [random.random() for _ in iterate_dataset([1, 2, 3])]
    assert drawn == expected


def test_steps_count_over_epochs_and_the_last_batch_is_shorter() -> None:
    batches = list(iterate_dataset(range(5), groups_per_step=2, num_epochs=2, use_tqdm=False))
    assert [(b.step, b.epoch, b.epoch_step, len(b.items)) for b in batches] == [
        (0, 0, 0, 2),
        (1, 0, 1, 2),
        (2, 0, 2, 1),
        (3, 1, 0, 2),
        (4, 1, 1, 2),
        (5, 1, 2, 1),
    ]


def test_an_interrupted_run_goes_on_with_the_same_batches() -> None:
    whole = list(iterate_dataset(range(7), 2, 2))
    assert list(iterate_dataset(range(7), 2, 2, initial_step=5)) == whole[5:]
    assert list(iterate_dataset(range(7), 2, 2, initial_step=99)) == []
    assert list(iterate_dataset([], 2, 2)) == []


def test_both_ways_of_reading_a_batch() -> None:
    for batch in iterate_dataset(["a"], num_epochs=2, initial_step=1):
        items, epoch, global_step, epoch_step = batch
        assert (items, epoch, global_step, epoch_step) == (["a"], 1, 1, 0)
        assert batch == DatasetBatch(items=["a"], step=1, epoch=1, epoch_step=0)


def test_a_step_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 item"):
        next(iterate_dataset([1], groups_per_step=0))
