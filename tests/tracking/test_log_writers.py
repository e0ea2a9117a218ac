"""Several writers of one log, writers that are killed, and a lock that is held."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import art
from art.errors import DeadlineError, DiskError
from art.tracking.folders import lock_folder
from art.utils.trajectory_logging import append_groups, read_trajectory_groups_parquet

WRITER = """
import sys
from pathlib import Path
import art
from art.tracking.trajectory_log import append_groups
path, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for number in range(count):
    append_groups(path, [art.TrajectoryGroup([art.Trajectory(logs=[f"{name}{number}"])])])
    print(number, flush=True)
"""


def writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def written(path: Path) -> list[str]:
    return [t.logs[0] for group in read_trajectory_groups_parquet(path) for t in group]


@pytest.mark.slow
def test_two_processes_lose_no_rows(tmp_path):
    path = tmp_path / "0001.parquet"
    writers = [writer(path, name, 15) for name in ("a", "b")]
    for process in writers:
        process.communicate(timeout=240)
        assert process.returncode == 0
    rows = written(path)
    assert sorted(rows) == sorted(f"{name}{number}" for name in ("a", "b") for number in range(15))
    assert [row for row in rows if row[0] == "a"] == [f"a{number}" for number in range(15)]


def test_threads_lose_no_rows(tmp_path):
    path = tmp_path / "0001.parquet"

    def append(number: int) -> None:
        append_groups(path, [art.TrajectoryGroup([art.Trajectory(logs=[str(number)])])])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(append, range(12)))
    assert sorted(map(int, written(path))) == list(range(12))


@pytest.mark.slow
def test_a_killed_writer_loses_nothing_it_finished(tmp_path):
    path = tmp_path / "0001.parquet"
    finished = 0
    for kill in range(2):
        process = writer(path, f"k{kill}-", 10_000)
        assert process.stdout is not None
        for _ in range(3 + kill):
            process.stdout.readline()
            finished += 1
        process.kill()
        # Not communicate(): with a timeout it forgets what readline() has read ahead.
        finished += len(process.stdout.read().splitlines())
        process.wait()
        assert finished <= len(written(path)) <= finished + kill + 1  # one may be whole but not yet told
    (tmp_path / ".0001.parquet.torn.part").write_bytes(b"half")
    append_groups(path, [])
    assert sorted(file.name for file in tmp_path.iterdir()) == [".lock", "0001.parquet"]


def test_a_held_lock_is_waited_for_until_the_deadline(tmp_path):
    with (
        lock_folder(tmp_path),
        pytest.raises(DeadlineError, match=str(tmp_path)),
        lock_folder(tmp_path, patience=0.05),
    ):
        pass
    with lock_folder(tmp_path, patience=0.05):
        pass


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "0001.parquet"
    append_groups(path, [art.TrajectoryGroup([art.Trajectory(logs=["kept"])])])

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(DiskError, match="disk is full"):
        append_groups(path, [art.TrajectoryGroup([art.Trajectory(logs=["lost"])])])
    assert written(path) == ["kept"]
    assert sorted(file.name for file in tmp_path.iterdir()) == [".lock", "0001.parquet"]
