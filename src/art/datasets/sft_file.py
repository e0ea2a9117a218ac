"""Examples in a file of JSON lines: `{"messages": [...], "tools": [...]}`, an assistant's message last."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from art.datasets.batch_size import BatchSize, resolve_sft_batch_size
from art.datasets.schedule import Method, create_lr_schedule
from art.errors import ConfigurationError
from art.types import TrainResult, TrainSFTConfig

if TYPE_CHECKING:
    from art.backend import AnyTrainableModel
    from art.trajectories import Trajectory


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
    schedule_type: Method = "linear",
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
