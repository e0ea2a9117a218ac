"""The file of a step's tokens: written from what the trainer hands out, read without a server, and never a
reason that a step fails.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save as save_arrays

from art.batch.batch_types import Batch, GroupRow, RolloutRow, SampleRow, TrainedSample
from art.batch.build import build_batch
from art.errors import TrainingError, TrajectoryLogError
from art.server.jobs import step_files
from art.server.jobs.step_files import (
    chosen_groups,
    delete_old,
    encode_tokens,
    keep_tokens,
    write_tokens,
)
from art.server.settings import ControlSettings
from art.server.workers.trainer_worker import TrainedModel, TrainerClient
from art.tracking.folders import ModelPaths
from art.tracking.step_record import read_tokens
from art.wire.jobs import TrainJobRequest
from art.wire.training import TOKEN_COLUMNS, TOKEN_FILE, ComputeSpec, TokenFileHeader

KEY = "games/player"


def batch_of(groups: int = 2, turns: int = 2) -> Batch:
    """Groups of two rollouts of so many turns of 3 ids, and one group that the program left out first."""

    def rollout(name: str, reward: float) -> RolloutRow:
        samples = [
            SampleRow(
                sample_id=f"{name}.{turn}",
                prompt_ids=[1, 2, *([7, 8, 9] * turn)],
                completion_ids=[7, 8, 9 if reward else 10],
                completion_logprobs=[-0.5, -0.6, -0.7],
            )
            for turn in range(turns)
        ]
        return RolloutRow(rollout=name, reward=reward, samples=samples)

    left_out = GroupRow(rollouts=[rollout("d", 0.0)], discarded=True)
    rows = [GroupRow(rollouts=[rollout(f"{n}a", 0.0), rollout(f"{n}b", 1.0)]) for n in range(groups)]
    return build_batch([left_out, *rows])


def columns_for(entries: int) -> dict[str, np.ndarray]:
    number_E = np.arange(entries)
    return {
        name: (number_E % 2 == 0) if kind == "bool" else (number_E / 4).astype(kind)
        for name, kind in TOKEN_COLUMNS.items()
    }


def request(**compute: Any) -> TrainJobRequest:
    return TrainJobRequest(
        job_id="job-1", groups=[], optimizer={"learning_rate": 1e-3}, compute=ComputeSpec(**compute)
    )


def files_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@asynccontextmanager
async def trainer_that_answers(
    status: str, body: bytes = b"", *, silent: bool = False
) -> AsyncIterator[TrainedModel]:
    """A model of a worker that gives one answer to everything, over real HTTP."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if silent:
            await reader.read()  # until the client has gone
        else:
            writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        writer.close()

    def trouble(error: Exception) -> None:
        raise AssertionError(f"the trainer is to be started again for {error!r}")

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = TrainerClient(f"http://127.0.0.1:{port}", "k" * 16, timeout=60, idle=60, trouble=trouble)
        try:
            yield TrainedModel(client, KEY, 6)
        finally:
            await client.aclose()


def test_a_file_says_of_each_entry_whose_it_is(tmp_path: Path) -> None:
    batch, paths = batch_of(), ModelPaths(tmp_path)
    columns = columns_for(len(batch.entries))
    path = write_tokens(paths.steps, save_arrays(columns), batch.samples, request(), 7)
    assert path == paths.tokens(7) and os.listdir(path.parent) == ["tokens.safetensors"]
    table = read_tokens(path)
    assert table is not None and table.complete and len(table) == len(batch.entries) == 24
    assert table.header == TokenFileHeader(
        job_id="job-1",
        step=7,
        entries=24,
        samples=[f"{n}{side}.{turn}" for n in range(2) for side in "ab" for turn in range(2)],
        rollouts=["0a", "0b", "1a", "1b"],
        groups=[1, 1, 2, 2],
    )
    for name, column in columns.items():
        np.testing.assert_array_equal(table.columns[name], column)
    np.testing.assert_array_equal(table.columns["rollout"], batch.entries.sequence_E)
    second = table.of_sample("0b.1")
    assert second is not None and second["place"].tolist() == [0, 1, 2] and set(second["rollout"]) == {1}
    np.testing.assert_array_equal(second["logprob"], columns["logprob"][9:12])
    assert table.samples_of("1a") == ["1a.0", "1a.1"] and table.samples_of("d") == []
    assert table.of_sample("d.0") is None and read_tokens(paths.tokens(8)) is None


def test_of_a_large_step_whole_groups_are_drawn_and_the_same_ones_again() -> None:
    samples = [
        TrainedSample(sample_id=f"{group}.{one}", rollout=f"{group}.{one}", group=group, tokens=500)
        for group in range(200)
        for one in range(4)
    ]
    chosen = chosen_groups(samples, "auto", "job-1")
    assert len(chosen) == 100, "400,000 tokens, of which 200,000 are kept"
    assert chosen == chosen_groups(samples, "auto", "job-1") != chosen_groups(samples, "auto", "job-2")
    assert chosen_groups(samples, "all", "job-1") == frozenset(range(200))
    count = sum(7 in chosen_groups(samples, "auto", f"job-{n}") for n in range(200))
    assert 70 <= count <= 130, "a group is drawn in half of the jobs"


def test_the_entries_of_the_chosen_groups_keep_their_columns(tmp_path: Path) -> None:
    batch = batch_of(groups=3)
    columns = columns_for(len(batch.entries))
    content = encode_tokens(columns, batch.samples, frozenset({1, 3}), job_id="j", step=1)
    (tmp_path / "file").write_bytes(content)
    table = read_tokens(tmp_path / "file")
    assert table is not None and not table.complete and len(table) == 24 and table.header.entries == 36
    assert table.header.groups == [1, 1, 3, 3] and table.of_sample("1a.0") is None
    last = table.of_sample("2b.1")
    assert last is not None and set(last["rollout"]) == {3}
    np.testing.assert_array_equal(last["ratio"], columns["ratio"][-3:])


def test_wide_numbers_fit() -> None:
    samples = [TrainedSample(sample_id="s", rollout="r", group=0, tokens=2**16 + 5)]
    content = encode_tokens(columns_for(2**16 + 5), samples, frozenset({0}), job_id="j", step=1)
    assert 24 * 2**16 < len(content) < 24 * 2**16 + 4096, "bytes a token; 22 where a sample is shorter"


def test_columns_of_another_batch_are_refused(tmp_path: Path) -> None:
    batch = batch_of()
    for columns in (columns_for(23), {"logprob": np.zeros(24, np.float32)}):
        with pytest.raises(TrainingError, match=r"must have logprob, entropy, .* of 24 loss entries"):
            write_tokens(tmp_path, save_arrays(columns), batch.samples, request(), 7)
    assert not list(tmp_path.iterdir())


def test_old_records_are_deleted_and_nothing_else(tmp_path: Path) -> None:
    for step in (1, 2, 3, 200, 201):
        (tmp_path / f"{step:04d}").mkdir()
        (tmp_path / f"{step:04d}" / "tokens.safetensors").write_bytes(b"t")
        (tmp_path / f"{step:04d}" / "rollouts.jsonl").write_bytes(b"r")
    (tmp_path / "notes").mkdir()
    delete_old(tmp_path, 200, TOKEN_FILE)
    left = sorted(path.parent.name for path in tmp_path.glob("*/tokens.safetensors"))
    assert left == ["0201"] and len(list(tmp_path.glob("*/rollouts.jsonl"))) == 5


async def test_the_record_is_fetched_and_the_one_out_of_retention_goes(tmp_path: Path) -> None:
    batch, body = batch_of(), save_arrays(columns_for(24))
    for step in (4, 5, 6):
        write_tokens(tmp_path, body, batch.samples, request(), step)
    settings = ControlSettings(token_steps=2)
    async with trainer_that_answers("200 OK", body) as opened:
        path = await keep_tokens(opened, batch, request(), steps=tmp_path, settings=settings)
        again = await keep_tokens(opened, batch, request(), steps=tmp_path, settings=settings)
        none = await keep_tokens(
            opened, batch, request(), steps=tmp_path / "no", settings=ControlSettings(token_steps=0)
        )
    assert path == again == tmp_path / "0007" / "tokens.safetensors" and none is None
    assert files_below(tmp_path) == ["0006/tokens.safetensors", "0007/tokens.safetensors"]


async def test_a_trainer_of_an_earlier_release_has_none_and_nobody_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with trainer_that_answers("404 Not Found", b"Not Found") as opened:
        kept = await keep_tokens(opened, batch_of(), request(), steps=tmp_path, settings=ControlSettings())
    assert kept is None and not files_below(tmp_path) and not caplog.records


@pytest.mark.parametrize("fault", ["500", "cut", "other", "silent", "full"])
async def test_what_fails_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    body = save_arrays(columns_for(23 if fault == "other" else 24))
    answers = {"500": b"", "cut": body[:40]}
    if fault == "full":

        def full(*_: Any, **__: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(step_files, "write_whole", full)
    settings = ControlSettings(token_record=0.3 if fault == "silent" else 30)
    status = "500 Internal Server Error" if fault == "500" else "200 OK"
    with caplog.at_level(logging.WARNING, "art.server"):
        async with trainer_that_answers(status, answers.get(fault, body), silent=fault == "silent") as opened:
            kept = await keep_tokens(opened, batch_of(), request(), steps=tmp_path, settings=settings)
    (line,) = caplog.messages
    assert kept is None and line.startswith(f"Step 7 of {KEY} has no record of its tokens: ")
    if fault == "full":
        assert "No space left on device" in line


def test_fields_of_a_later_release_are_left_out(tmp_path: Path) -> None:
    content = encode_tokens(columns_for(24), batch_of().samples, frozenset({1, 2}), job_id="j", step=1)
    later = content.replace(b'\\"job_id\\":\\"j\\",', b'\\"job_id\\":\\"j\\",\\"n\\":1,')
    size = len(later) - len(content) + int.from_bytes(content[:8], "little")
    (tmp_path / "file").write_bytes(size.to_bytes(8, "little") + later[8:])
    table = read_tokens(tmp_path / "file")
    assert len(later) > len(content) and table is not None and table.header.job_id == "j"


@pytest.mark.parametrize("damage", ["cut", "text", "version", "header"])
def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path, damage: str) -> None:
    content = encode_tokens(columns_for(24), batch_of().samples, frozenset({1, 2}), job_id="j", step=1)
    changed = {
        "cut": content[:-50],
        "text": b"no such thing",
        "version": content.replace(b'\\"version\\":1', b'\\"version\\":2'),
        "header": content.replace(b'\\"job_id\\"', b'\\"jobs\\"  '),
    }[damage]
    assert changed != content
    (tmp_path / "tokens.safetensors").write_bytes(changed)
    with pytest.raises(TrajectoryLogError, match=r"tokens\.safetensors .*(delete it|delete the file)"):
        read_tokens(tmp_path / "tokens.safetensors")
