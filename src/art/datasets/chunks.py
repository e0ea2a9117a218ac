"""Examples in chunks, each for one call of `train_sft`, at the rates of one schedule over all of them.

epoch     all examples, in an order of its own
batch     `batch_size` examples of one epoch: one update
chunk     `chunk_size` batches of one epoch: one call, one step of the model
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from art.datasets.batch_size import BatchSize, resolve_sft_batch_size
from art.datasets.schedule import Method, create_lr_schedule
from art.errors import ConfigurationError
from art.tracking.progress import open_progress
from art.types import TrainSFTConfig

if TYPE_CHECKING:
    from art.trajectories import Trajectory


class SFTChunk(NamedTuple):
    """What one call of `train_sft` trains. `step`, `epoch_step`: the number of its first batch, in all and in
    its epoch, both from 0.
    """

    trajectories: list[Trajectory]
    config: TrainSFTConfig
    step: int
    epoch: int
    epoch_step: int


def create_sft_dataset_iterator(
    trajectories: Sequence[Trajectory],
    chunk_size: int = 10,
    epochs: int = 1,
    batch_size: BatchSize = 2,
    peak_lr: float = 2e-4,
    schedule_type: Method = "linear",
    warmup_ratio: float = 0.1,
    shuffle: bool = True,
    seed: int = 42,
    initial_step: int = 0,
    show_progress: bool = True,
) -> Iterator[SFTChunk]:
    """The chunks of a whole training run.

    chunk_size: batches of a chunk. warmup_ratio: the share of all batches that warms up. shuffle: every
    epoch has an order of its own, `Random(seed + epoch)`; the global generator is left alone. initial_step:
    so many batches were trained before; the chunk in which that lies begins there, and all that follow are
    as they were.

    Raises ConfigurationError (a ValueError).
    """
    size = resolve_sft_batch_size(batch_size)
    for name, value in (("chunk_size", chunk_size), ("epochs", epochs)):
        if value < 1:
            raise ConfigurationError(f"{name} must be >= 1, got {value!r}")
    if initial_step < 0:
        raise ConfigurationError(f"initial_step must be >= 0, got {initial_step!r}")
    examples = list(trajectories)
    per_epoch = -(-len(examples) // size)
    total = per_epoch * epochs
    rates = create_lr_schedule(total, peak_lr, schedule_type, warmup_steps=int(total * warmup_ratio))

    def chunk(epoch: int, order: Sequence[int], first: int, last: int) -> SFTChunk:
        step = epoch * per_epoch + first
        return SFTChunk(
            trajectories=[examples[index] for index in order[first * size : last * size]],
            config=TrainSFTConfig(learning_rate=rates[step : step + last - first], batch_size=size),
            step=step,
            epoch=epoch,
            epoch_step=first,
        )

    def chunks() -> Iterator[SFTChunk]:
        with open_progress("sft" if show_progress else None, total) as progress:
            progress.advance(min(initial_step, total), {})
            for epoch in range(initial_step // per_epoch if per_epoch else epochs, epochs):
                order = list(range(len(examples)))
                if shuffle:
                    Random(seed + epoch).shuffle(order)
                for start in range(0, per_epoch, chunk_size):
                    first = max(start, initial_step - epoch * per_epoch)
                    last = min(start + chunk_size, per_epoch)
                    if first < last:
                        yield chunk(epoch, order, first, last)
                        progress.advance(last - first, {})

    return chunks()
