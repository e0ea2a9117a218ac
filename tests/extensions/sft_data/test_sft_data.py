"""Schedules, chunks and files: every example once an epoch, every batch at its rate, from any place on."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import art
from art.errors import ConfigurationError
from art.types import TrainSFTConfig
from art.utils.sft import (
    SFTChunk,
    create_lr_schedule,
    create_sft_dataset_iterator,
    get_file_row_count,
    iterate_file,
    resolve_sft_batch_size,
    train_sft_from_file,
)
from art_extensions.sft_data.datasets import _lines, _shuffled


@given(
    st.integers(1, 40),
    st.integers(0, 10),
    st.sampled_from(["linear", "cosine", "constant"]),
    st.floats(0, 0.5),
)
def test_a_schedule_rises_to_the_peak_and_ends_at_the_minimum(
    total: int, warmup: int, method: Any, least: float
) -> None:
    rates = create_lr_schedule(total, 1.0, method, warmup, least)
    assert len(rates) == total
    rise, fall = rates[:warmup], rates[warmup:]
    assert rise == [pytest.approx(least + (1 - least) * (n + 1) / warmup) for n in range(len(rise))]
    decay = max(1, total - warmup - 1)
    for n, rate in enumerate(fall):
        part = {"linear": 1 - n / decay, "cosine": 0.5 * (1 + math.cos(math.pi * n / decay)), "constant": 1}
        assert rate == pytest.approx(least + (1 - least) * part[method])
    if len(fall) > 1 and method != "constant":
        assert fall[0] == 1.0 and fall[-1] == pytest.approx(least, abs=1e-15)


def test_schedules_of_nothing_and_of_unknown_methods() -> None:
    assert create_lr_schedule(0, 1.0) == create_lr_schedule(-3, 1.0) == []
    with pytest.raises(ValueError, match=r"^Unknown method: polynomial\. Known: linear, cosine, constant"):
        create_lr_schedule(3, 1.0, "polynomial")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="warmup_steps is -1"):
        create_lr_schedule(3, 1.0, warmup_steps=-1)


def example(number: int) -> art.Trajectory:
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": str(number)}]
    return art.Trajectory(messages_and_choices=said)


def numbers(trajectories: list[art.Trajectory]) -> list[int]:
    return [int(one.messages_and_choices[-1]["content"]) for one in trajectories]


def chunks_of(count: int, **options: Any) -> list[SFTChunk]:
    given = {"show_progress": False, **options}
    return list(create_sft_dataset_iterator([example(n) for n in range(count)], **given))


@given(
    count=st.integers(0, 23),
    chunk_size=st.integers(1, 4),
    epochs=st.integers(1, 3),
    batch_size=st.integers(1, 5),
    shuffle=st.booleans(),
    start=st.integers(0, 40),
)
def test_chunks_hold_every_example_once_an_epoch_and_go_on_from_anywhere(
    count: int, chunk_size: int, epochs: int, batch_size: int, shuffle: bool, start: int
) -> None:
    options = {"chunk_size": chunk_size, "epochs": epochs, "batch_size": batch_size, "shuffle": shuffle}
    before = random.getstate()
    whole = chunks_of(count, **options)
    assert random.getstate() == before, "the program's own random numbers are left alone"
    per_epoch = -(-count // batch_size)
    rates = create_lr_schedule(per_epoch * epochs, 2e-4, "linear", int(per_epoch * epochs * 0.1))
    batches = []
    for chunk in whole:
        assert isinstance(chunk.config, TrainSFTConfig) and chunk.config.batch_size == batch_size
        assert chunk.step == chunk.epoch * per_epoch + chunk.epoch_step
        given = numbers(chunk.trajectories)
        made = [given[at : at + batch_size] for at in range(0, len(given), batch_size)]
        assert len(made) == len(chunk.config.learning_rate) <= chunk_size
        assert chunk.config.learning_rate == rates[chunk.step : chunk.step + len(made)]
        batches += [(chunk.epoch, batch) for batch in made]
    for epoch in range(epochs):
        order = list(range(count))
        if shuffle:
            random.Random(42 + epoch).shuffle(order)
        assert [n for at, batch in batches if at == epoch for n in batch] == order

    # From any batch on, exactly what was left.
    rest = chunks_of(count, initial_step=start, **options)
    assert [n for chunk in rest for n in numbers(chunk.trajectories)] == [
        n for _, batch in batches[start:] for n in batch
    ]
    assert [rate for chunk in rest for rate in chunk.config.learning_rate] == rates[start:]
    ends = {chunk.step: numbers(chunk.trajectories) for chunk in whole}
    assert all(ends[chunk.step] == numbers(chunk.trajectories) for chunk in rest[1:])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"chunk_size": 0}, "chunk_size must be >= 1, got 0"),
        ({"epochs": 0}, "epochs must be >= 1"),
        ({"initial_step": -1}, "initial_step must be >= 0"),
        ({"batch_size": 0}, "batch_size is 0; it is a number from 1 on, or 'auto'"),
        ({"schedule_type": "steps"}, "Unknown method: steps"),
    ],
)
def test_chunks_that_cannot_be_are_refused_at_once(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        create_sft_dataset_iterator([example(0)], **options)


def test_automatic_batches_are_of_two() -> None:
    assert resolve_sft_batch_size("auto") == 2 and resolve_sft_batch_size(7) == 7
    for wrong in (0, True, 1.5, "all"):
        with pytest.raises(ConfigurationError, match="from 1 on, or 'auto'"):
            resolve_sft_batch_size(wrong)  # type: ignore[arg-type]


def write(path: Path, count: int) -> Path:
    rows = [
        {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": str(n)}]}
        for n in range(count)
    ]
    path.write_text("\n\n".join(json.dumps(row) for row in rows) + "\n")
    return path


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_a_file_is_read_whole_each_epoch_in_orders_of_their_own(tmp_path: Path, size: int) -> None:
    path = write(tmp_path / "data.jsonl", 12)
    assert get_file_row_count(path) == 12
    read = numbers(list(iterate_file(path, 3, size)))
    epochs = [read[:12], read[12:24], read[24:]]
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs)
    if size == 1:
        assert epochs[0] == list(range(12))
    else:
        assert epochs[0] != epochs[1] != epochs[2]
    assert numbers(list(iterate_file(path, 3, size))) == read
    for skipped in (5, 12, 17, 40):
        assert numbers(list(iterate_file(path, 3, size, initial_skip=skipped))) == read[skipped:]


def test_a_file_is_read_as_it_is_needed(tmp_path: Path) -> None:
    path = write(tmp_path / "data.jsonl", 50)
    taken = []

    def counted() -> Any:
        for line in _lines(path):
            taken.append(line)
            yield line

    drawn = _shuffled(counted(), random.Random(0), 10)
    next(drawn)
    assert len(taken) == 11


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("{", "line 2 is not valid JSON"),
        pytest.param("[" * 100_000, "line 2 is not valid JSON", id="nested"),
        ("[]", "line 2 is \\[\\], not an object with one of"),
        ('{"messages": "hi"}', "line 2, messages is 'hi', not a list of messages"),
        ('{"messages": []}', "line 2: the last message is of role None"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "line 2: the last message is of role 'user'"),
    ],
)
def test_a_bad_line_is_told_by_its_number(tmp_path: Path, row: str, problem: str) -> None:
    path = tmp_path / "data.jsonl"
    good = '{"messages": [{"role": "assistant", "content": "a"}], "tools": [{"name": "f"}], "id": 7}'
    path.write_text(f"{good}\n{row}\n")
    rows = iterate_file(path, shuffle_buffer_size=1)
    assert next(rows).tools == [{"name": "f"}]
    with pytest.raises(ConfigurationError, match=rf"data\.jsonl, {problem}"):
        next(rows)


def test_other_files_are_refused(tmp_path: Path) -> None:
    for call in (lambda: iterate_file("data.csv"), lambda: get_file_row_count("data.csv")):
        with pytest.raises(ValueError, match=r"^data\.csv: a file of examples is \.jsonl, \.json or"):
            call()
    with pytest.raises(ConfigurationError, match="shuffle_buffer_size is 0"):
        iterate_file(write(tmp_path / "a.jsonl", 1), shuffle_buffer_size=0)


class Student:
    """Notes what it was given to learn."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[int], TrainSFTConfig]] = []

    async def train_sft(self, trajectories: Any, config: TrainSFTConfig, **_: Any) -> None:
        self.calls.append((numbers(list(trajectories)), config))


async def test_a_file_is_one_call_with_a_rate_for_each_batch(tmp_path: Path) -> None:
    path, student = write(tmp_path / "data.jsonl", 5), Student()
    await train_sft_from_file(student, path, epochs=3, batch_size=2, peak_lr=1.0, schedule_type="cosine")
    ((read, config),) = student.calls
    assert len(read) == 15 and config.batch_size == 2
    assert config.learning_rate == create_lr_schedule(8, 1.0, "cosine", warmup_steps=0)
    assert config.assistant_turns == "all"
    await train_sft_from_file(student, path, assistant_turns="last")
    assert student.calls.pop()[1].assistant_turns == "last"

    # In two halves: the same examples at the same rates.
    for first, last in ((0, 3), (3, None)):
        await train_sft_from_file(
            student,
            path,
            epochs=3,
            batch_size=2,
            peak_lr=1.0,
            schedule_type="cosine",
            initial_step=first,
            final_step=last,
        )
    one, two = student.calls[1:]
    assert one[0] + two[0] == read
    assert one[1].learning_rate + two[1].learning_rate == config.learning_rate
    with pytest.raises(ConfigurationError, match=r"initial_step=9, final_step=None: .* has 8 batches"):
        await train_sft_from_file(student, path, epochs=3, initial_step=9)
