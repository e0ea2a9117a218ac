"""Examples for supervised training: files of JSON and of Parquet, shuffled batches, and chunks.

What a row is: `art.client.sft.sft_rows`.

    epoch     all examples, in an order of its own
    batch     `batch_size` examples of one epoch: one update
    chunk     `chunk_size` batches of one epoch: one call of `train_sft`, one step of the model, at the
              rates of one schedule over all of them
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from art.client.options.learning_rates import DecayMethod, create_lr_schedule
from art.client.sft.sft_request import BatchSize, resolve_sft_batch_size
from art.client.sft.sft_rows import row_trajectory, sft_trajectories
from art.errors import ConfigurationError, extra_needed, is_installed
from art.process.foreign_files import open_foreign, parse_json, read_foreign, read_lines, too_long
from art.tracking.progress import open_progress
from art.types import TrainResult, TrainSFTConfig

if TYPE_CHECKING:
    from art.backend import AnyTrainableModel, SftExample
    from art.trajectories import Trajectory


AssistantTurns = Literal["all", "last"]

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


class _FileRow(NamedTuple):
    """A row with its place in the file; one of a JSON Lines file is read when it is its turn."""

    place: str
    content: Any
    is_text: bool = False


def iterate_file(
    file_path: str | Path,
    epochs: int = 1,
    shuffle_buffer_size: int = 10000,
    seed: int = 42,
    initial_skip: int = 0,
) -> Iterator[Trajectory]:
    """The examples of a .jsonl, .json or .parquet file, `epochs` times over.

    At most `shuffle_buffer_size` lines of JSON Lines are held at once; a .json file is read as a whole, a
    Parquet file in parts, by polars or pyarrow.

    Every epoch has an order of its own, by `Random(seed + epoch)`: each example is drawn from the buffer. A
    buffer of 1 keeps the file's order. initial_skip: so many examples, over all epochs, were seen before;
    they are passed over.

    Raises ConfigurationError (a ValueError) for another kind of file, and for a bad row, with its number.
    """
    path = _data_file(file_path)
    if shuffle_buffer_size < 1:
        raise ConfigurationError(f"shuffle_buffer_size is {shuffle_buffer_size!r}; it is at least 1")
    epochs_of_rows = (
        _shuffled(_file_rows(path), Random(seed + epoch), shuffle_buffer_size) for epoch in range(epochs)
    )
    rows = islice(chain.from_iterable(epochs_of_rows), initial_skip, None)
    return (_trajectory(path, row) for row in rows)


def get_file_row_count(file_path: str | Path) -> int:
    """The number of a file's rows. Raises ConfigurationError (a ValueError) for another kind of file."""
    return sum(1 for _ in _file_rows(_data_file(file_path)))


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
    assistant_turns: AssistantTurns = "all",
) -> TrainResult:
    """One call of `model.train_sft` on the whole file: one step of the model.

    The schedule spans all batches of all epochs; `initial_step` and `final_step` cut out the batches from the
    one up to before the other. An example that comes again in a later epoch is held and sent once. A file of
    more than 256 MiB needs several calls: `iterate_file` and `create_sft_dataset_iterator`.
    assistant_turns: as in `TrainSFTConfig`.

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
    config = TrainSFTConfig(
        learning_rate=rates[initial_step:end], batch_size=size, assistant_turns=assistant_turns
    )
    trained = islice(examples, (end - initial_step) * size)
    return await model.train_sft(trained, config, _config=_config, verbose=verbose)


def _data_file(file_path: str | Path) -> Path:
    path = Path(file_path)
    if path.suffix not in _READERS:
        raise ConfigurationError(
            f"{file_path}: a file of examples is .jsonl, .json or .parquet. Read any other kind yourself and "
            "give its rows (a list of dicts) to train_sft"
        )
    return path


def _file_rows(path: Path) -> Iterator[_FileRow]:
    return _READERS[path.suffix](path)


def _lines(path: Path) -> Iterator[_FileRow]:
    with open_foreign(path) as file:
        for number, text in read_lines(file):
            if text is None or text.strip():
                yield _FileRow(f"line {number}", text, is_text=True)


def _json_array(path: Path) -> Iterator[_FileRow]:
    """The rows of an array; a .json file that holds JSON Lines, as some are published, is read as such."""
    text = read_foreign(path)
    if not text.lstrip().startswith(b"["):
        yield from _lines(path)
        return
    try:
        rows = parse_json(text)
    except ValueError as error:
        raise ConfigurationError(f"{path} is not valid JSON: {error}") from error
    for number, row in enumerate(rows):
        yield _FileRow(f"row {number}", row)


def _parquet(path: Path) -> Iterator[_FileRow]:
    """Yields the rows, read by polars or pyarrow, whichever is installed."""
    for number, row in enumerate(chain.from_iterable(_parquet_parts(path))):
        yield _FileRow(f"row {number}", row)


def _parquet_parts(path: Path) -> Iterator[list[dict[str, Any]]]:
    if not is_installed("polars") and is_installed("pyarrow"):
        from pyarrow.parquet import ParquetFile

        with ParquetFile(path) as file:
            yield from (part.to_pylist() for part in file.iter_batches(_PARQUET_ROWS))
        return
    with extra_needed("logs", f"{path}: a Parquet file"):
        import polars
    try:
        frame = polars.read_parquet(path)
    except (polars.exceptions.PolarsError, polars.exceptions.PanicException) as error:
        raise ConfigurationError(f"{path} cannot be read as Parquet: {error}") from error
    yield from (part.to_dicts() for part in frame.iter_slices(_PARQUET_ROWS))


_PARQUET_ROWS = 1000
"""Rows of a Parquet file that are Python objects at once."""
_READERS: Mapping[str, Callable[[Path], Iterator[_FileRow]]] = MappingProxyType(
    {".jsonl": _lines, ".json": _json_array, ".parquet": _parquet}
)


def _shuffled(rows: Iterator[_FileRow], random: Random, size: int) -> Iterator[_FileRow]:
    """Each row in place of one drawn from the buffer; at the end the rest of the buffer."""
    buffer: list[_FileRow] = []
    for row in rows:
        if len(buffer) < size:
            buffer.append(row)
            continue
        at = random.randrange(size)
        buffer[at], drawn = row, buffer[at]
        yield drawn
    random.shuffle(buffer)
    yield from buffer


def _trajectory(path: Path, row: _FileRow) -> Trajectory:
    where, content = f"{path}, {row.place}", row.content
    if row.is_text:
        try:
            if content is None:
                raise too_long()
            content = parse_json(content)
        except ValueError as error:
            raise ConfigurationError(f"{where} is not valid JSON: {error}") from error
    return row_trajectory(where, content)


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
    trajectories: Iterable[SftExample],
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
    """The chunks of a whole training run, on trajectories or rows (see `train_sft`).

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
    examples = list(sft_trajectories(trajectories))
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
