"""A data set in shuffled batches, epoch after epoch."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from art.errors import ConfigurationError
from art.tracking.progress import open_progress

T = TypeVar("T")


@dataclass
class DatasetBatch(Generic[T]):
    """The items of one step. step counts over all epochs, epoch_step within one; all begin at 0.

    Unpacks as older programs do: `items, epoch, step, epoch_step = batch`.
    """

    items: list[T]
    step: int
    epoch: int
    epoch_step: int

    def __iter__(self) -> Iterator[Any]:
        return iter((self.items, self.epoch, self.step, self.epoch_step))


def iterate_dataset(
    dataset: Sequence[T],
    groups_per_step: int = 1,
    num_epochs: int = 1,
    initial_step: int = 0,
    use_tqdm: bool = True,
) -> Generator[DatasetBatch[T], None, None]:
    """Batches of `groups_per_step` items; the last of an epoch may be shorter.

    Each epoch has its own order, always the same one, and `random`'s shared generator stays as it is.
    initial_step: where an interrupted run goes on. use_tqdm: show a progress bar on a terminal.
    Raises ConfigurationError when `groups_per_step` is below 1.
    """
    if groups_per_step < 1:
        raise ConfigurationError(f"iterate_dataset({groups_per_step=}): at least 1 item makes a step")
    items = list(dataset)
    steps_per_epoch = -(-len(items) // groups_per_step)
    total = num_epochs * steps_per_epoch
    with open_progress("steps" if use_tqdm else None, total) as progress:
        progress.move_to(min(initial_step, total), total, "")
        for epoch in range(num_epochs):
            order = list(range(len(items)))
            random.Random(epoch).shuffle(order)
            for epoch_step in range(steps_per_epoch):
                step = epoch * steps_per_epoch + epoch_step
                if step < initial_step:
                    continue
                start = epoch_step * groups_per_step
                chosen = [items[index] for index in order[start : start + groups_per_step]]
                yield DatasetBatch(chosen, step, epoch, epoch_step)
                progress.move_to(step + 1, total, "")
