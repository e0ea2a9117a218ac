"""JSON lines that lose nothing, beside Parquet files and on the way to them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from made_groups import any_groups, exact, full_group

import art
from art.errors import TrajectoryLogError
from art.tracking.folders import lock_folder
from art.tracking.trajectory_lines import append_lines
from art.utils.trajectory_logging import (
    append_groups,
    deserialize_trajectory_groups,
    read_trajectory_groups,
    read_trajectory_groups_parquet,
)
from art.utils.trajectory_migration import (
    migrate_jsonl_to_parquet,
    trajectory_to_dict,
)

WRITER = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import art
from art.tracking.trajectory_lines import append_lines
path, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for number in range(count):
    append_lines(path, [art.TrajectoryGroup([art.Trajectory(logs=[f"{name}{number}", "x" * 100_000])])])
    print(number, flush=True)
"""


def writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def one(name: str) -> art.TrajectoryGroup:
    return art.TrajectoryGroup([art.Trajectory(reward=1.0, logs=[name])])


def names(path: Path) -> list[str]:
    return [t.logs[0] for group in read_trajectory_groups(path) for t in group]


@pytest.mark.slow
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(groups=any_groups(), more=any_groups())
def test_what_is_written_is_what_is_read(tmp_path, groups, more):
    path = tmp_path / "0001.jsonl"
    path.unlink(missing_ok=True)
    append_lines(path, groups)
    append_lines(path, more)
    again = read_trajectory_groups(path)
    assert again == groups + more
    assert exact(again) == exact(groups + more)  # 1 is not True, and not 1.0


@pytest.mark.slow
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(groups=any_groups(), parquet=any_groups())
def test_both_formats_tell_the_same_and_one_becomes_the_other(tmp_path, groups, parquet):
    lines = tmp_path / "0001.jsonl"
    (tmp_path / "0001.parquet").unlink(missing_ok=True)
    append_groups(tmp_path / "0001.parquet", parquet)
    append_lines(lines, groups)
    assert exact(read_trajectory_groups(tmp_path / "0001.parquet")) == exact(parquet + groups)
    result = migrate_jsonl_to_parquet(lines)
    assert (result.files_migrated, result.errors) == (1 if groups else 0, [])
    assert lines.exists() is not bool(groups)
    lines.unlink(missing_ok=True)
    assert exact(read_trajectory_groups(tmp_path / "0001.parquet")) == exact(parquet + groups)


def test_log_probabilities_exceptions_and_reasons_are_kept(tmp_path):
    groups = [full_group(), art.TrajectoryGroup([TimeoutError("all failed")], logs=["g"])]
    append_lines(tmp_path / "0001.jsonl", groups)
    append_lines(tmp_path / "0001.jsonl", [])
    again = read_trajectory_groups(tmp_path / "0001.jsonl")
    assert again == groups
    said = again[0].trajectories[0].messages_and_choices[2]
    assert said.logprobs.content[0].logprob == -0.125 and (said.sample_id, said.step) == ("s1", 3)
    assert again[0].exceptions[0].message == "boom" and again[0].trajectories[1].reward.reason
    assert again[0].trajectories[0].start_time == groups[0].trajectories[0].start_time
    assert sorted(file.name for file in tmp_path.iterdir()) == [".lock", "0001.jsonl"]


class Answered(art.Trajectory):
    answer: dict[str, int] | None = None
    tries: int | None = 1


def test_fields_of_a_subclass(tmp_path):
    groups = [art.TrajectoryGroup([Answered(answer={"x": 1}, tries=None)])]
    append_lines(tmp_path / "0001.jsonl", groups)
    assert read_trajectory_groups(tmp_path / "0001.jsonl", Answered) == groups
    [unknown] = read_trajectory_groups(tmp_path / "0001.jsonl")[0]
    assert unknown.answer == {"x": 1} and unknown.tries is None


def test_not_a_number_is_kept_and_migrated(tmp_path):
    trajectory = art.Trajectory(reward=math.nan, metrics={"x": math.inf})
    append_lines(tmp_path / "0001.jsonl", [art.TrajectoryGroup([trajectory])])
    assert migrate_jsonl_to_parquet(tmp_path / "0001.jsonl").errors == []
    [read] = read_trajectory_groups_parquet(tmp_path / "0001.parquet")[0]
    assert math.isnan(read.reward) and read.metrics == {"x": math.inf}


def test_the_shape_is_the_older_one_and_more(tmp_path):
    group = full_group()
    append_lines(tmp_path / "0001.jsonl", [group])
    text = (tmp_path / "0001.jsonl").read_text()
    [line] = map(json.loads, text.splitlines())
    older = trajectory_to_dict(group.trajectories[0])
    shown = line["trajectories"][0]
    for turn, known in zip(shown["messages_and_choices"], older["messages_and_choices"], strict=True):
        assert {name: turn[name] for name in known} == known
    for name in older.keys() - {"messages_and_choices", "additional_histories"}:
        assert shown[name] == older[name], name
    assert deserialize_trajectory_groups(text) == [group]


@pytest.mark.slow
def test_two_processes_lose_no_lines(tmp_path):
    path = tmp_path / "0001.jsonl"
    for process in [writer(path, name, 15) for name in ("a", "b")]:
        process.communicate(timeout=240)
        assert process.returncode == 0
    rows = names(path)
    assert sorted(rows) == sorted(f"{name}{number}" for name in ("a", "b") for number in range(15))


@pytest.mark.slow
def test_a_killed_writer_loses_nothing_it_finished(tmp_path):
    path = tmp_path / "0001.jsonl"
    finished = 0
    for kill in range(3):
        process = writer(path, f"k{kill}-", 100_000)
        assert process.stdout is not None
        for _ in range(3):
            process.stdout.readline()
            finished += 1
        process.kill()
        # Not communicate(): with a timeout it forgets what readline() has read ahead.
        finished += len(process.stdout.read().splitlines())
        process.wait()
        assert finished <= len(names(path)) <= finished + kill + 1  # one may be whole but not yet told


def test_a_torn_line_is_left_out_and_removed_by_the_next_writer(tmp_path, caplog):
    path = tmp_path / "0001.jsonl"
    append_lines(path, [one("a"), one("b")])
    whole = path.read_bytes()
    for size in (len(whole) - 1, len(whole) - 2, len(whole) // 2 + 5):
        path.write_bytes(whole[:size])
        expected = ["a", "b"] if size == len(whole) - 1 else ["a"]  # only the newline is missing
        caplog.clear()
        assert names(path) == expected
        assert ("unfinished line" in caplog.text) is (len(expected) == 1)
        append_lines(path, [one("c")])
        assert names(path) == [*expected, "c"]
        assert len(path.read_bytes().splitlines()) == len(expected) + 1


def test_a_line_that_is_damaged_is_named(tmp_path):
    path = tmp_path / "0001.jsonl"
    append_lines(path, [one("a")])
    path.write_bytes(path.read_bytes() + b"{torn\n")
    with pytest.raises(TrajectoryLogError, match=r"0001\.jsonl.*line 2"):
        read_trajectory_groups(path)
    with pytest.raises(TrajectoryLogError, match=r"missing\.jsonl"):
        read_trajectory_groups(tmp_path / "missing.jsonl")
    append_lines(path, [one("b")])
    assert b"{torn\n" in path.read_bytes()


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "0001.jsonl"
    append_lines(path, [one("kept")])
    before = path.read_bytes()

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        append_lines(path, [one("lost")])
    assert path.read_bytes() == before


@pytest.mark.parametrize("work", [lambda path: append_lines(path, [one("b")]), migrate_jsonl_to_parquet])
def test_lines_wait_for_the_folders_lock(tmp_path, work):
    append_lines(tmp_path / "0001.jsonl", [one("a")])
    with ThreadPoolExecutor(1) as pool:
        with lock_folder(tmp_path):
            waiting = pool.submit(work, tmp_path / "0001.jsonl")
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.3)
            assert names(tmp_path / "0001.jsonl") == ["a"]
            assert sorted(file.name for file in tmp_path.iterdir()) == [".lock", "0001.jsonl"]
        waiting.result(timeout=240)
    assert names(tmp_path / "0001.parquet")[0] == "a"


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_lines_alone_are_read_by_either_name(tmp_path, ending):
    append_lines(tmp_path / "0001.jsonl", [one("a")])
    assert names((tmp_path / "0001").with_suffix(ending)) == ["a"]


def test_what_was_migrated_is_not_taken_twice(tmp_path):
    """As when a program is killed before it deletes the original."""
    lines = tmp_path / "0001.jsonl"
    append_lines(lines, [one("a")])
    content = lines.read_bytes()
    assert migrate_jsonl_to_parquet(lines).files_migrated == 1 and not lines.exists()
    lines.write_bytes(content)
    assert names(tmp_path / "0001.parquet") == ["a"]
    again = migrate_jsonl_to_parquet(lines)
    assert (again.files_migrated, again.files_skipped, lines.exists()) == (0, 1, True)
    lines.unlink()
    append_lines(lines, [one("b")])  # another file of that name
    assert names(tmp_path / "0001.parquet") == ["a", "b"]


def test_lines_of_an_older_program_beside_a_parquet_file_are_its_original(tmp_path):
    append_groups(tmp_path / "0001.parquet", [one("a")])
    (tmp_path / "0001.jsonl").write_text('{"trajectories": [{"reward": 0.0, "logs": ["old"]}]}\n{torn\n')
    assert names(tmp_path / "0001.parquet") == ["a"]
    assert migrate_jsonl_to_parquet(tmp_path / "0001.jsonl").files_skipped == 1


def test_an_unfinished_line_is_not_deleted_by_a_migration(tmp_path):
    lines = tmp_path / "0001.jsonl"
    append_lines(lines, [one("a"), one("b")])
    content = lines.read_bytes()[:-5]
    lines.write_bytes(content)
    result = migrate_jsonl_to_parquet(lines)
    assert (result.files_migrated, result.errors) == (1, []) and "unfinished last line" in result.notes[0]
    assert names(tmp_path / "0001.parquet") == ["a"] and not lines.exists()
    assert (tmp_path / "0001.jsonl.migrated").read_bytes() == content


def test_a_file_that_is_read_back_differently_changes_nothing(tmp_path, monkeypatch):
    append_groups(tmp_path / "0001.parquet", [one("a")])
    append_lines(tmp_path / "0001.jsonl", [one("b")])
    before = (tmp_path / "0001.parquet").read_bytes()
    monkeypatch.setattr("art_extensions.compat.trajectory_migration.read_parquet", lambda path: [])
    result = migrate_jsonl_to_parquet(tmp_path / "0001.jsonl")
    assert result.files_migrated == 0 and "not read back equal" in result.errors[0]
    assert (tmp_path / "0001.parquet").read_bytes() == before and names(tmp_path / "0001.jsonl") == ["b"]
    assert sorted(file.name for file in tmp_path.iterdir()) == [".lock", "0001.jsonl", "0001.parquet"]


@pytest.mark.slow
def test_migrating_while_a_program_logs_loses_nothing(tmp_path):
    path = tmp_path / "0001.jsonl"
    process = writer(path, "a", 20)
    assert process.stdout is not None
    for _ in process.stdout:
        migrate_jsonl_to_parquet(path)
    assert process.wait(timeout=240) == 0 and not path.exists()
    assert names(tmp_path / "0001.parquet") == [f"a{number}" for number in range(20)]
