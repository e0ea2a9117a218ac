"""Examples for supervised training: files of JSON lines, shuffled batches, and chunks.

A row of a file is `{"messages": [...], "tools": [...]}`, an assistant's message last.

    epoch     all examples, in an order of its own
    batch     `batch_size` examples of one epoch: one update
    chunk     `chunk_size` batches of one epoch: one call of `train_sft`, one step of the model, at the
              rates of one schedule over all of them
"""

from __future__ import annotations

import json
import random
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from art.client.learning_rates import DecayMethod, create_lr_schedule
from art.errors import ConfigurationError
from art.tracking.progress import open_progress
from art.types import TrainResult, TrainSFTConfig

if TYPE_CHECKING:
    from art.backend import AnyTrainableModel
    from art.trajectories import Trajectory


BatchSize = int | Literal["auto"]

AUTO_BATCH_SIZE = 2
"""What "auto" is."""


def resolve_sft_batch_size(batch_size: BatchSize) -> int:
    """The number of trajectories of an update.

    >>> resolve_sft_batch_size("auto")
    2

    Raises ConfigurationError for anything but "auto" and a number from 1 on.
    """
    if batch_size == "auto":
        return AUTO_BATCH_SIZE
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ConfigurationError(f"batch_size is {batch_size!r}; it is a number from 1 on, or 'auto'")
    return batch_size


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


class _Line(NamedTuple):
    number: int
    text: str


def iterate_file(
    file_path: str | Path,
    epochs: int = 1,
    shuffle_buffer_size: int = 10000,
    seed: int = 42,
    initial_skip: int = 0,
) -> Iterator[Trajectory]:
    """The file's examples, `epochs` times over; at most `shuffle_buffer_size` lines are held at once.

    Every epoch has an order of its own, by `Random(seed + epoch)`: each example is drawn from the buffer. A
    buffer of 1 keeps the file's order. initial_skip: so many examples, over all epochs, were seen before;
    they are passed over.

    Raises ConfigurationError (a ValueError) for another kind of file, and for a bad line, with its number.
    """
    path = _jsonl(file_path)
    if shuffle_buffer_size < 1:
        raise ConfigurationError(f"shuffle_buffer_size is {shuffle_buffer_size!r}; it is at least 1")
    epochs_of_lines = (
        _shuffled(_lines(path), Random(seed + epoch), shuffle_buffer_size) for epoch in range(epochs)
    )
    lines = islice(chain.from_iterable(epochs_of_lines), initial_skip, None)
    return (_trajectory(path, line) for line in lines)


def get_file_row_count(file_path: str | Path) -> int:
    """Lines that are not empty. Raises ConfigurationError (a ValueError) for another kind of file."""
    return sum(1 for _ in _lines(_jsonl(file_path)))


async def train_sft_from_file(
    model: AnyTrainableModel,
    file_path: str | Path,
    epochs: int = 1,
    batch_size: BatchSize = 2,
    peak_lr: float = 2e-4,
    schedule_type: DecayMethod = "linear",
    warmup_ratio: float = 0.1,
    initial_step: int = 0,
    final_step: int | None = None,
    _config: Mapping[str, Any] | None = None,
    verbose: bool = False,
    shuffle_buffer_size: int = 10000,
) -> TrainResult:
    """One call of `model.train_sft` on the whole file: one step of the model.

    The schedule spans all batches of all epochs; `initial_step` and `final_step` cut out the batches from the
    one up to before the other. An example that comes again in a later epoch is held and sent once. A file of
    more than 256 MiB needs several calls: `iterate_file` and `create_sft_dataset_iterator`.

    Raises ConfigurationError (a ValueError), and what `train_sft` raises.
    """
    size = resolve_sft_batch_size(batch_size)
    total = -(-get_file_row_count(file_path) * epochs // size)
    end = total if final_step is None else min(final_step, total)
    if not 0 <= initial_step <= end:
        raise ConfigurationError(
            f"initial_step={initial_step!r}, final_step={final_step!r}: {str(file_path)!r} has {total} "
            "batches, and 0 <= initial_step <= final_step"
        )
    rates = create_lr_schedule(total, peak_lr, schedule_type, warmup_steps=int(total * warmup_ratio))
    examples = iterate_file(file_path, epochs, shuffle_buffer_size, initial_skip=initial_step * size)
    config = TrainSFTConfig(learning_rate=rates[initial_step:end], batch_size=size)
    trained = islice(examples, (end - initial_step) * size)
    return await model.train_sft(trained, config, _config=_config, verbose=verbose)


def _jsonl(file_path: str | Path) -> Path:
    path = Path(file_path)
    if path.suffix != ".jsonl":
        raise ConfigurationError(f"Only JSONL files are supported. Got: {file_path}")
    return path


def _lines(path: Path) -> Iterator[_Line]:
    with path.open(encoding="utf-8") as file:
        for number, text in enumerate(file, 1):
            if text.strip():
                yield _Line(number, text)


def _shuffled(lines: Iterator[_Line], random: Random, size: int) -> Iterator[_Line]:
    """Each line in place of one drawn from the buffer; at the end the rest of the buffer."""
    buffer: list[_Line] = []
    for line in lines:
        if len(buffer) < size:
            buffer.append(line)
            continue
        at = random.randrange(size)
        buffer[at], drawn = line, buffer[at]
        yield drawn
    random.shuffle(buffer)
    yield from buffer


def _trajectory(path: Path, line: _Line) -> Trajectory:
    from art.trajectories import Trajectory

    where = f"{path}, line {line.number}"
    try:
        row = json.loads(line.text)
    except ValueError as error:
        raise ConfigurationError(f"{where} is not valid JSON: {error}") from error
    messages = row.get("messages") if isinstance(row, dict) else None
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise ConfigurationError(f'{where} has no list of messages; a row is {{"messages": [...]}}')
    last = messages[-1].get("role") if messages else None
    if last != "assistant":
        raise ConfigurationError(
            f"{where}: the last message is of role {last!r}; it must be an assistant's, which is what is "
            "learned"
        )
    return Trajectory(messages_and_choices=messages, tools=row.get("tools") or None, reward=0.0)


class SFTChunk(NamedTuple):
    """The examples of one call of `train_sft`. `step`, `epoch_step`: the number of its first batch, in all
    and in its epoch, both from 0.
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
    schedule_type: DecayMethod = "linear",
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
