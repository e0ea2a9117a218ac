from __future__ import annotations

import json
import math
import secrets
from datetime import UTC, datetime

import polars
import pytest
from hypothesis import HealthCheck, given, settings
from made_groups import any_groups, exact, full_group, reply
from pydantic import BaseModel

import art
from art.errors import DiskError, TrajectoryLogError
from art.tracking import trajectory_log
from art.tracking.trajectory_lines import (
    append_lines,
    deserialize_trajectory_groups,
    read_lines,
    serialize_trajectory_groups,
)
from art.tracking.trajectory_log import LoggedSteps, read_trajectory_groups
from art.utils.trajectory_logging import (
    append_groups,
    read_trajectory_groups_parquet,
    write_trajectory_groups_parquet,
)


def test_everything_is_read_back(tmp_path):
    groups = [
        full_group(),
        art.TrajectoryGroup([TimeoutError("all failed")], metadata={"k": 1}),
        full_group(),
    ]
    write_trajectory_groups_parquet(groups, tmp_path / "log.parquet")
    again = read_trajectory_groups_parquet(tmp_path / "log.parquet")
    assert again == groups
    said = again[0].trajectories[0].messages_and_choices[2]
    assert said.to_dict() == groups[0].trajectories[0].messages_and_choices[2].to_dict()
    assert said.logprobs.content[0].logprob == -0.125 and said.sample_id == "s1"


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def _strange_metadata():
    circle: dict = {"name": "circle"}
    circle["self"] = circle
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    return {
        "when": datetime(2026, 1, 2, tzinfo=UTC),
        "tags": {"only"},
        "place": tuple("ab"),
        "by_key": {(1, 2): "x", 3: "y", None: "z"},
        "object": Unprintable(),
        "circle": circle,
        "deep": deep,
    }


@pytest.mark.parametrize("lines", [False, True])
def test_metadata_may_be_anything_and_never_stops_a_log(tmp_path, lines):
    one = art.Trajectory(metadata={"plan": {"steps": [1, {"done": None}]}, **_strange_metadata()})
    group = art.TrajectoryGroup([one], metadata={"nested": [[1.5], {"a": "b"}], **_strange_metadata()})
    one.metadata["later"] = {"found": [1]}
    file = tmp_path / ("log.jsonl" if lines else "log.parquet")
    (append_lines if lines else append_groups)(file, [group])
    [again] = read_trajectory_groups(file)
    assert again.metadata["nested"] == [[1.5], {"a": "b"}]
    read = again.trajectories[0].metadata
    assert read["plan"] == {"steps": [1, {"done": None}]} and read["later"] == {"found": [1]}
    assert read["when"] == "2026-01-02T00:00:00+00:00" and read["tags"] == ["only"]
    assert read["place"] == ["a", "b"] and read["by_key"] == {"[1, 2]": "x", "3": "y", "null": "z"}
    assert read["object"] == "<Unprintable>" and read["circle"]["self"] == "<dict>"
    assert read.keys() == one.metadata.keys()


def test_the_columns_of_older_readers(tmp_path):
    write_trajectory_groups_parquet([full_group()], str(tmp_path / "log.parquet"))
    frame = polars.read_parquet(tmp_path / "log.parquet")
    text = polars.String()
    turn = {"role": text, "content": text, "tool_calls": text, "tool_call_id": text}
    message = polars.Struct({**turn, "trainable": polars.Boolean()})
    assert dict(list(frame.schema.items())[:10]) == {
        "group_index": polars.Int64(),
        "group_metadata": text,
        "group_metrics": text,
        "group_logs": polars.List(text),
        "reward": polars.Float64(),
        "metrics": text,
        "metadata": text,
        "tools": text,
        "logs": polars.List(text),
        "messages": polars.List(message),
    }
    rows = frame.to_dicts()
    assert [row["reward"] for row in rows] == [0.1 + 0.2, None]
    messages = rows[0]["messages"]
    assert [m["trainable"] for m in messages] == [False, False, True, False, False, True]
    [call] = json.loads(messages[2].pop("tool_calls"))
    assert call == {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    assert messages[2] == {"role": "assistant", "content": "", "tool_call_id": None, "trainable": True}
    assert messages[3]["tool_call_id"] == "c1" and '"image_url"' in messages[1]["content"]
    assert rows[1]["metrics"] is None and rows[1]["tools"] is None and rows[1]["logs"] is None


def test_no_groups_give_an_empty_table_with_all_columns(tmp_path):
    write_trajectory_groups_parquet([], tmp_path / "log.parquet")
    assert polars.read_parquet(tmp_path / "log.parquet").shape[0] == 0
    assert "messages" in polars.read_parquet(tmp_path / "log.parquet").columns
    assert read_trajectory_groups_parquet(tmp_path / "log.parquet") == []


def test_appending_keeps_what_is_there(tmp_path):
    first, failed, last = full_group(), art.TrajectoryGroup([ValueError("x")]), full_group()
    for group in (first, failed, last):
        append_groups(tmp_path / "new" / "0001.parquet", [group])
    append_groups(tmp_path / "new" / "0001.parquet", [])
    assert read_trajectory_groups_parquet(tmp_path / "new" / "0001.parquet") == [first, failed, last]
    frame = polars.read_parquet(tmp_path / "new" / "0001.parquet")
    assert frame["group_index"].to_list() == [0, 0, 2, 2]
    assert sorted(file.name for file in (tmp_path / "new").iterdir()) == [".lock", "0001.parquet"]


class Answer(BaseModel):
    text: str
    sources: list[int] = []
    at: datetime | None = None


class Answered(art.Trajectory):
    answer: Answer | None = None
    tries: int = 0


def test_fields_of_a_subclass(tmp_path):
    answer = Answer(text="42", at=datetime(2026, 1, 2, tzinfo=UTC))
    answer.sources.append(7)
    groups = [art.TrajectoryGroup([Answered(reward=1.0, answer=answer, tries=2)])]
    write_trajectory_groups_parquet(groups, tmp_path / "log.parquet")
    assert read_trajectory_groups_parquet(tmp_path / "log.parquet", Answered) == groups

    unknown = read_trajectory_groups_parquet(tmp_path / "log.parquet")
    read = unknown[0].trajectories[0]
    assert isinstance(read, art.Trajectory) and read.reward == 1.0 and read.tries == 2
    assert read.answer == {"text": "42", "sources": [7], "at": "2026-01-02T00:00:00+00:00"}
    write_trajectory_groups_parquet(unknown, tmp_path / "again.parquet")
    assert read_trajectory_groups_parquet(tmp_path / "again.parquet", Answered) == groups


def test_a_dict_in_the_shape_of_a_choice_is_read_back_as_its_message(tmp_path):
    message = {"role": "assistant", "content": "hi", "name": "me"}
    shaped = {"finish_reason": "stop", "index": 0, "message": message}
    sampled = {**shaped, "sample_id": "s1"}
    turns = [{"role": "user", "content": "x"}, shaped, sampled, reply("own")]
    made = art.Trajectory(
        messages_and_choices=turns, additional_histories=[art.History(messages_and_choices=[shaped])]
    )
    assert made.messages_and_choices[1] is shaped
    group = art.TrajectoryGroup([made])
    write_trajectory_groups_parquet([group], tmp_path / "log.parquet")
    append_lines(tmp_path / "log.jsonl", [group])
    for [again] in (
        *read_trajectory_groups_parquet(tmp_path / "log.parquet"),
        *read_lines(tmp_path / "log.jsonl").groups,
    ):
        assert again.messages_and_choices[:2] == [turns[0], message]
        # What a server of ours sampled can be trained, and stays a choice.
        assert [item.message.content for item in again.messages_and_choices[2:]] == ["hi", "own"]
        assert again.messages_and_choices[2].sample_id == "s1"
        assert again.additional_histories[0].messages_and_choices == [message]


def test_not_a_number_is_kept(tmp_path):
    groups = [art.TrajectoryGroup([art.Trajectory(reward=math.nan, metrics={"x": math.nan, "y": math.inf})])]
    write_trajectory_groups_parquet(groups, tmp_path / "log.parquet")
    [trajectory] = read_trajectory_groups_parquet(tmp_path / "log.parquet")[0]
    assert math.isnan(trajectory.reward) and math.isnan(trajectory.metrics["x"])
    assert trajectory.metrics["y"] == math.inf


def test_a_damaged_log_is_named_and_never_replaced(tmp_path):
    path = tmp_path / "log.parquet"
    path.write_bytes(b"PAR1 torn")
    with pytest.raises(TrajectoryLogError, match=r"log\.parquet"):
        read_trajectory_groups_parquet(path)
    with pytest.raises(TrajectoryLogError, match=r"log\.parquet"):
        append_groups(path, [full_group()])
    assert path.read_bytes() == b"PAR1 torn"
    with pytest.raises(TrajectoryLogError, match=r"missing\.parquet"):
        read_trajectory_groups_parquet(tmp_path / "missing.parquet")
    polars.DataFrame({"a": [1]}).write_parquet(path)
    with pytest.raises(TrajectoryLogError, match="no column 'group_index'"):
        read_trajectory_groups_parquet(path)


def test_a_path_is_no_pattern(tmp_path):
    for name in ("a[1]*.parquet", "a1x.parquet"):
        append_groups(tmp_path / "split=val" / name, [full_group()])
    assert len(read_trajectory_groups_parquet(tmp_path / "split=val" / "a[1]*.parquet")) == 1


@pytest.mark.slow
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(groups=any_groups(), more=any_groups())
def test_what_is_written_is_what_is_read(tmp_path, groups, more):
    path = tmp_path / "log.parquet"
    write_trajectory_groups_parquet(groups, path)
    append_groups(path, more)
    again = read_trajectory_groups_parquet(path)
    assert again == groups + more
    assert exact(again) == exact(groups + more)  # 1 is not True, and not 1.0


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(groups=any_groups(logprobs=False))
def test_json_lines_keep_all_but_log_probabilities(groups):
    again = deserialize_trajectory_groups(serialize_trajectory_groups(groups))
    assert again == groups
    assert exact(again) == exact(groups)


@pytest.mark.slow
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(first=any_groups(), more=any_groups(), lines=any_groups())
def test_a_step_is_streamed_and_asked_for_one_group_as_it_is_read_whole(tmp_path, first, more, lines):
    folder = tmp_path / secrets.token_hex(4)
    log = LoggedSteps(folder)
    assert log.by_split() == {}
    append_groups(log.path("train", 3), first)
    append_groups(log.path("train", 3), more)
    append_lines(log.path("train", 3).with_suffix(".jsonl"), lines)
    append_lines(log.path("val", 12).with_suffix(".jsonl"), lines)
    assert log.by_split() == {"train": [3], "val": [12]}
    for split, step in ("train", 3), ("val", 12):
        whole = [exact(one) for one in read_trajectory_groups(log.path(split, step))]
        assert [exact(one) for one in log.groups(split, step)] == whole
        for place, one in enumerate(whole):
            assert exact(log.group(split, step, place)) == one
        assert log.group(split, step, len(whole)) is None


def test_a_missing_log_is_named_by_whoever_asks_for_it(tmp_path):
    for ask in (lambda log: log.group("train", 1, 0), lambda log: list(log.groups("train", 1))):
        with pytest.raises(TrajectoryLogError, match="0001"):
            ask(LoggedSteps(tmp_path))


def test_one_group_is_read_without_the_others(tmp_path, monkeypatch):
    log, decoded = LoggedSteps(tmp_path), []
    groups = [art.TrajectoryGroup([full_group().trajectories[0]] * 3, metadata={"n": n}) for n in range(100)]
    append_groups(log.path("train", 0), groups)
    read = trajectory_log.read_stored

    def counted(path, columns=None, **chosen):
        found = read(path, columns, **chosen)
        decoded.append(found.frame.height if columns is None else 0)
        return found

    monkeypatch.setattr(trajectory_log, "read_stored", counted)
    assert log.group("train", 0, 70).metadata == {"n": 70} and max(decoded) == 3
    decoded.clear()
    numbers = []
    for one in log.groups("train", 0):
        numbers.append(one.metadata["n"])
        assert max(decoded) <= 3 * trajectory_log.GROUPS_TOGETHER
    assert numbers == list(range(100)) and sum(decoded) == 300


def test_a_file_that_another_order_of_writing_mixed_has_its_groups_apart(tmp_path):
    log, groups = LoggedSteps(tmp_path), [full_group(), full_group()]
    append_groups(log.path("train", 0), groups)
    path = log.path("train", 0)
    polars.read_parquet(path).reverse().write_parquet(path)
    assert [len(one) for one in log.groups("train", 0)] == [len(one) for one in groups]


def test_a_log_that_is_streamed_is_read_once_and_stays_what_it_was(tmp_path):
    log, groups = LoggedSteps(tmp_path), [full_group() for _ in range(2 * trajectory_log.GROUPS_TOGETHER)]
    append_groups(log.path("train", 0), groups)
    streamed = log.groups("train", 0)
    next(streamed)
    write_trajectory_groups_parquet([], log.path("train", 0))
    assert len(list(streamed)) == len(groups) - 1


@pytest.mark.slow
@pytest.mark.parametrize("small_disk", ["1m"], indirect=True)
def test_a_full_disk_is_named_and_what_was_logged_stays(small_disk):
    log = small_disk / "0001.parquet"
    logged = full_group()
    append_groups(log, [logged])
    with (small_disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
        while True:
            filler.write(b"x" * 4096)
    large = full_group()
    large.metadata["noise"] = secrets.token_hex(100_000)
    with pytest.raises(DiskError, match="cannot be logged: the disk is full"):
        append_groups(log, [large])
    (small_disk / "filler").unlink()
    assert read_trajectory_groups_parquet(log) == [logged]
    assert [path.name for path in small_disk.iterdir() if path.suffix == ".part"] == []
