"""A disk without room: what failed says so, leaves nothing behind, and goes on when there is room again."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from homes import Home
from safetensors import SafetensorError
from test_jobs import RESULT, bench, request

from art.errors import CheckpointError, DiskError
from art.process.files import disk_trouble, free_bytes
from art.server.checkpoints import checkpoints as module
from art.server.checkpoints.checkpoints import Checkpoints, JobNote
from art.server.jobs.job_store import JobStore
from art.server.jobs.job_table import TrainingJob
from art.server.jobs.training_jobs import Progress
from art.server.workers.trainer_worker import worker_error
from art.wire.jobs import TrainResultInfo
from art.wire.models import ADAPTER_CONFIG_FILE, ADAPTER_FILE
from waiting import until

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The kernel refuses to make any file longer."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FULL, "the disk is full: "),
        (OSError(errno.EDQUOT, "quota"), "the disk is full: "),
        (SafetensorError("I/O error: No space left on device (os error 28)"), "the disk is full: "),
        (OSError(errno.EROFS, "Read-only file system"), "mounted read-only"),
        (PermissionError(errno.EACCES, "Permission denied"), "permissions"),
        (OSError(errno.EIO, "Input/output error"), "keep a copy"),
        (FileNotFoundError(errno.ENOENT, "No such file"), None),
        (ValueError("something else"), None),
    ],
)
def test_the_words_for_a_disk(tmp_path: Path, error: Exception, words: str | None) -> None:
    place = tmp_path / "not" / "there"
    told = disk_trouble(error, place)
    assert (told is None) if words is None else (told is not None and words in told and str(place) in told)
    assert free_bytes(place) == pytest.approx(free_bytes(tmp_path), rel=0.05)  # others write to the disk


async def test_a_commit_that_fails_leaves_nothing_and_the_next_one_works(tmp_path: Path, monkeypatch) -> None:
    steps, note = Checkpoints(tmp_path / "c"), JobNote(job_id="j", result=RESULT)
    folder = steps.fresh_folder(1)
    folder.mkdir()
    (folder / "weights").write_bytes(b"w" * 100)

    def full(*_: object) -> None:
        raise FULL

    with monkeypatch.context() as patched:
        patched.setattr(module, "write_flushed", full)
        with pytest.raises(
            DiskError, match=r"step 1 could not be committed: the disk is full: .* bytes free"
        ):
            steps.commit(1, note)
    assert list(steps.folder.iterdir()) == [] and steps.steps() == []
    left = steps.folder / "..0001.saving.abcd.partial"
    left.mkdir()
    steps.fresh_folder(1).mkdir()
    assert not left.exists(), "what a killed trainer left of this step"
    steps.commit(1, note)
    assert steps.steps() == [1]


async def test_a_copy_that_fails_leaves_nothing(tmp_path: Path) -> None:
    source = tmp_path / "lora"
    source.mkdir()
    for name in (ADAPTER_FILE, ADAPTER_CONFIG_FILE):
        (source / name).write_bytes(b"w" * 100_000)
    steps = Checkpoints(tmp_path / "c")
    with files_of_at_most(10_000), pytest.raises((DiskError, CheckpointError), match="could not be copied"):
        steps.copy_adapter(source, 0)
    assert list(steps.folder.iterdir()) == []
    steps.copy_adapter(source, 0)


def test_a_worker_s_defect_is_not_called_none() -> None:
    told = worker_error(500, b"Internal Server Error")
    assert "None" not in str(told) and "the traceback is in its log" in str(told)
    named = worker_error(400, b'{"error": {"type": "DiskError", "message": "the disk is full: /x"}}')
    assert type(named) is DiskError


@pytest.mark.parametrize("ends", ["well", "badly"])
async def test_a_job_whose_end_cannot_be_written_is_told_and_the_next_one_runs(
    tmp_path: Path, monkeypatch, ends: str
) -> None:
    monkeypatch.setattr("art.server.jobs.training_jobs._AGAIN_SECONDS", 0.05)
    name = "finish" if ends == "well" else "fail"
    write, full = getattr(JobStore, name), True

    async def refuse(*arguments: object) -> None:
        if full:
            raise DiskError("the disk is full: jobs.sqlite")
        await write(*arguments)

    async def run(job: TrainingJob, progress: Progress) -> TrainResultInfo:
        if ends == "badly":
            raise DiskError("the checkpoint could not be written: the disk is full")
        return RESULT

    monkeypatch.setattr(JobStore, name, refuse)
    async with bench(Home(tmp_path), run) as it:
        for job_id in ("one", "two"):
            await it.jobs.submit("games", "player", request(job_id))
            told = await it.events(job_id)
            assert [event.number for event in told] == list(range(1, len(told) + 1))
            assert told[-1].type == ("result" if ends == "well" else "error")
            assert (await it.jobs.info(job_id)).state == ("done" if ends == "well" else "failed")
        assert told[-1].result == RESULT or told[-1].error_code == "DiskError"
        assert await it.jobs.store.unfinished_ids("games", "player") == ["one", "two"], (
            "for a server that starts now"
        )
        full = False

        async def written() -> bool:
            return await it.jobs.store.unfinished_ids("games", "player") == []

        await until(written)
        assert await it.events("two") == told, "the same events, once the table has them"


@pytest.mark.slow
@pytest.mark.parametrize("small_disk", ["256k"], indirect=True)
async def test_a_real_full_disk(small_disk: Path) -> None:
    async with bench(Home(small_disk)) as it:
        await it.jobs.submit("games", "player", request("before"))
        assert (await it.events("before"))[-1].type == "result"
        steps = Checkpoints(small_disk / "c")
        steps.fresh_folder(1).mkdir()
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            while True:
                file.write(b"x" * 4096)
        with pytest.raises(DiskError, match="the disk is full"):
            steps.commit(1, JobNote(job_id="j", result=RESULT))
        with pytest.raises(DiskError, match="the disk is full"):
            for number in range(100):
                await it.jobs.submit("games", "player", request(f"{number}-{'long' * 40}"))
        assert (await it.events("before"))[-1].type == "result", "what was told stays"
        filler.unlink()
        steps.fresh_folder(1).mkdir()
        steps.commit(1, JobNote(job_id="j", result=RESULT))
        await it.jobs.submit("games", "player", request("after"))
        assert (await it.events("after"))[-1].type == "result"
