from __future__ import annotations

import json
import math

import polars
import pytest
from openai.types.chat.chat_completion import Choice

import art
from art.errors import TrajectoryLogError
from art.tracking import trajectory_lines as json_lines
from art.utils.trajectory_logging import append_groups, read_trajectory_groups_parquet
from art_extensions.compat import trajectory_migration as migration

TOOL = {"type": "function", "function": {"name": "f"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TEXT = polars.String()
TURN = polars.Struct(
    {"role": TEXT, "content": TEXT, "tool_calls": TEXT, "tool_call_id": TEXT, "trainable": polars.Boolean()}
)
OLD_SCHEMA = {
    "group_index": polars.Int64(),
    "group_metadata": TEXT,
    "group_metrics": TEXT,
    "group_logs": polars.List(TEXT),
    "reward": polars.Float64(),
    "metrics": TEXT,
    "metadata": TEXT,
    "tools": TEXT,
    "logs": polars.List(TEXT),
    "messages": polars.List(TURN),
}


def turn(role, content, *, calls=None, call_id=None, trainable=False):
    return {
        "role": role,
        "content": content,
        "tool_calls": json.dumps(calls) if calls else None,
        "tool_call_id": call_id,
        "trainable": trainable,
    }


def old_row(group: int, **fields):
    turns = [
        turn("user", "x"),
        turn("assistant", "", calls=[CALL], trainable=True),
        turn("tool", "4", call_id="c1"),
        turn("assistant", "done", trainable=True),
    ]
    row = {"group_index": group, "reward": 0.5, "messages": turns, "tools": json.dumps([TOOL])}
    return dict.fromkeys(OLD_SCHEMA) | row | fields


def old_file(path, *rows, **further_columns):
    polars.DataFrame(list(rows), schema=OLD_SCHEMA | further_columns).write_parquet(path, compression="zstd")
    return path


def test_a_file_of_an_older_program(tmp_path):
    path = old_file(
        tmp_path / "0001.parquet",
        old_row(0, group_metadata='{"scenario_id": "a"}', group_metrics='{"judge": 0.5}', group_logs=["g"]),
        old_row(1, metrics='{"won": true}', metadata='{"n": null}', logs=["l"]),
        old_row(0, reward=1.0),
    )
    first, second = read_trajectory_groups_parquet(path)
    assert (first.metadata, first.metrics, first.logs) == ({"scenario_id": "a"}, {"judge": 0.5}, ["g"])
    assert [t.reward for t in first] == [0.5, 1.0]
    [trajectory] = second
    assert trajectory.metrics == {"won": True} and trajectory.metadata == {"n": None}
    assert trajectory.logs == ["l"] and trajectory.tools == [TOOL]
    assert [m["trainable"] for m in trajectory.for_logging()["messages"]] == [False, True, False, True]
    asked = trajectory.messages_and_choices[1]
    assert isinstance(asked, Choice) and asked.finish_reason == "tool_calls"
    assert trajectory.messages() == [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "4", "tool_call_id": "c1"},
        {"role": "assistant", "content": "done"},
    ]


def test_an_older_file_can_be_appended_to(tmp_path):
    path = old_file(tmp_path / "0001.parquet", old_row(4), own=polars.Int64())
    before = read_trajectory_groups_parquet(path)
    more = art.TrajectoryGroup([art.Trajectory(reward=art.Unscored("?"), rollout_id="r"), ValueError("x")])
    append_groups(path, [more])
    again = read_trajectory_groups_parquet(path)
    assert [t.messages_and_choices for t in again[0]] == [t.messages_and_choices for t in before[0]]
    assert again[1] == more
    frame = polars.read_parquet(path)
    assert frame["group_index"].to_list() == [4, 5] and "own" in frame.columns


def test_a_file_that_an_older_program_migrated(tmp_path):
    history = {"messages_and_choices": [{"role": "user", "content": "sub"}], "tools": [TOOL]}
    path = old_file(
        tmp_path / "0001.parquet",
        old_row(0, additional_histories=json.dumps([history])),
        old_row(0),
        additional_histories=TEXT,
    )
    [group] = read_trajectory_groups_parquet(path)
    assert group.trajectories[0].additional_histories == [art.History(**history)]
    assert group.trajectories[1].additional_histories == []


def test_other_writers_types(tmp_path):
    """Narrow numbers, columns of nothing, structs with fewer and with further fields."""
    messages = [{"role": "user", "content": "x", "trainable": False, "weight": 1.0}]
    frame = polars.DataFrame(
        {"group_index": [0, 1], "reward": [1, 0], "messages": [messages, []], "logs": None}
    )
    frame.cast({"group_index": polars.UInt8(), "reward": polars.Float32()}).write_parquet(
        tmp_path / "0001.parquet"
    )
    more = art.TrajectoryGroup([art.Trajectory(reward=0.5)])
    append_groups(tmp_path / "0001.parquet", [more])
    first, second, third = read_trajectory_groups_parquet(tmp_path / "0001.parquet")
    assert first.trajectories[0].messages() == [{"role": "user", "content": "x"}]
    assert [t.reward for t in (*first, *second)] == [1.0, 0.0] and third == more


def test_a_row_that_is_damaged_names_the_file(tmp_path):
    path = old_file(tmp_path / "0001.parquet", old_row(0, metrics="{torn"))
    with pytest.raises(TrajectoryLogError, match=r"0001\.parquet"):
        read_trajectory_groups_parquet(path)


OLD_LINE = {
    "trajectories": [
        {
            "reward": 1,
            "metrics": {"won": True},
            "metadata": {"scenario_id": "a"},
            "messages_and_choices": [
                {"role": "user", "content": "line\u2028separator"},
                {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "hi"}},
            ],
            "tools": [TOOL],
            "additional_histories": [
                {"messages_and_choices": [{"role": "user", "content": "sub"}], "tools": None}
            ],
            "logs": ["l"],
        },
        {"reward": math.nan, "metrics": None, "messages_and_choices": [], "logs": []},
    ]
}


def old_lines(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines or [OLD_LINE, OLD_LINE])
    )
    return path


def test_lines_are_read():
    [group] = json_lines.deserialize_trajectory_groups(json.dumps(OLD_LINE, ensure_ascii=False))
    trajectory, bare = group.trajectories
    assert trajectory.reward == 1 and trajectory.tools == [TOOL] and trajectory.logs == ["l"]
    assert isinstance(trajectory.messages_and_choices[1], Choice)
    assert trajectory.additional_histories[0].messages() == [{"role": "user", "content": "sub"}]
    assert bare.metrics == {} and bare.metadata == {}


def test_lines_round_trip_without_log_probabilities():
    said = Choice.construct(
        index=0,
        finish_reason="stop",
        logprobs={"content": [{"token": "h", "bytes": None, "logprob": -1.0, "top_logprobs": []}]},
        message={"role": "assistant", "content": "h"},
        sample_id="s1",
    )
    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "x"}, said],
        additional_histories=[art.History(messages_and_choices=[said])],
        reward=art.Unscored("?"),
        initial_policy_version=3,
    )
    groups = [
        art.TrajectoryGroup([trajectory, ValueError("boom")], metadata={"k": 1}),
        art.TrajectoryGroup([]),
    ]
    text = json_lines.serialize_trajectory_groups(groups)
    assert '"logprobs"' not in text and len(text.split("\n")) == 2
    again = json_lines.deserialize_trajectory_groups(text)
    [read] = again[0].trajectories
    assert read.messages() == trajectory.messages() and read.messages_and_choices[1].sample_id == "s1"
    assert (read.reward, read.initial_policy_version) == (art.Unscored("?"), 3)
    assert read.start_time == trajectory.start_time
    assert again[0].exceptions == groups[0].exceptions and again[1] == groups[1]


def test_the_small_functions_are_inverse():
    [group] = json_lines.deserialize_trajectory_groups(json.dumps(OLD_LINE))
    trajectory = group.trajectories[0]
    assert json_lines.dict_to_trajectory(json_lines.trajectory_to_dict(trajectory)) == trajectory
    [history] = trajectory.additional_histories
    assert json_lines.dict_to_history(json_lines.history_to_dict(history)) == history
    for item in trajectory.messages_and_choices:
        assert json_lines.dict_to_message_or_choice(json_lines.message_or_choice_to_dict(item)) == item


def test_a_line_that_is_no_group_is_named():
    with pytest.raises(TrajectoryLogError, match="line 2"):
        json_lines.deserialize_trajectory_groups(json.dumps(OLD_LINE) + "\n{torn")


@pytest.mark.parametrize("delete", [True, False])
def test_migrating_one_file(tmp_path, delete):
    path = old_lines(tmp_path / "0001.jsonl")
    size = path.stat().st_size
    result = migration.migrate_jsonl_to_parquet(path, delete_original=delete)
    target = tmp_path / "0001.parquet"
    assert (result.files_migrated, result.bytes_before, result.errors) == (1, size, [])
    assert result.bytes_after == target.stat().st_size
    assert result.compression_ratio == size / target.stat().st_size
    assert result.space_saved == size - target.stat().st_size
    assert path.exists() is not delete
    first, second = read_trajectory_groups_parquet(target)
    assert first.trajectories[0].tools == [TOOL] and len(second) == 2
    assert migration.migrate_jsonl_to_parquet(path).files_migrated == 0


def test_a_dry_run_measures_and_writes_nothing(tmp_path):
    path = old_lines(tmp_path / "0001.jsonl")
    dry = migration.migrate_jsonl_to_parquet(path, dry_run=True)
    assert [file.name for file in tmp_path.iterdir()] == ["0001.jsonl"]
    real = migration.migrate_jsonl_to_parquet(path)
    assert (dry.files_migrated, dry.bytes_before) == (1, real.bytes_before)
    assert abs(dry.bytes_after - real.bytes_after) < 100  # the time of reading is in the file


def test_errors_and_skipped_files_are_collected(tmp_path):
    model = tmp_path / "p" / "models" / "m"
    old_lines(model / "trajectories" / "train" / "0001.jsonl")
    old_lines(model / "trajectories" / "val" / "0001.jsonl")
    torn = model / "trajectories" / "val" / "0002.jsonl"
    torn.write_text('{"trajectories": [\n')
    (model / "trajectories" / "val" / "0003.yaml").write_text("- {}")
    known = old_lines(model / "trajectories" / "val" / "0004.jsonl")
    old_file(known.with_suffix(".parquet"), old_row(0))
    (tmp_path / "file").write_text("not a project")
    result = migration.migrate_all_models(tmp_path)
    assert (result.files_migrated, result.files_skipped) == (2, 2)
    assert len(result.errors) == 1 and str(torn) in result.errors[0]
    notes = "\n".join(result.notes)
    assert len(result.notes) == 4 and "YAML" in notes and "0004.parquet is already there" in notes
    assert torn.exists() and known.exists()
    assert not torn.with_suffix(".parquet").exists()
    seen: list[str] = []
    again = migration.migrate_all_models(
        art_path=tmp_path, project_name="p", delete_originals=False, progress_callback=seen.append
    )
    assert again.files_migrated == 0 and seen == sorted(
        str(path) for path in model.rglob("*") if path.suffix in {".jsonl", ".yaml"}
    )
    for folder, migrate in (
        (model, migration.migrate_model_dir),
        (model / "trajectories", migration.migrate_trajectories_dir),
    ):
        called: list[str] = []
        assert migrate(folder, delete_originals=False, progress_callback=called.append).errors == again.errors
        assert called == seen

    missing = migration.migrate_jsonl_to_parquet(tmp_path / "no.jsonl")
    assert missing.files_migrated == 0 and "no.jsonl" in missing.errors[0]
    assert migration.migrate_jsonl_to_parquet(tmp_path / "a.txt").files_skipped == 1
    assert (result + missing).errors == result.errors + missing.errors
    assert migration.MigrationResult().compression_ratio == 0.0


@pytest.mark.parametrize("garbage", ["not valid json", "{torn\n", "\x00\x01"])
def test_a_file_of_garbage_is_an_error(tmp_path, garbage):
    path = tmp_path / "0001.jsonl"
    path.write_text(garbage)
    for dry_run in (True, False):
        result = migration.migrate_jsonl_to_parquet(jsonl_path=path, dry_run=dry_run)
        assert result.files_migrated == 0 and len(result.errors) == 1 and str(path) in result.errors[0]
    assert path.read_text() == garbage and not path.with_suffix(".parquet").exists()


def test_registering_keeps_the_originals(tmp_path):
    path = old_lines(tmp_path / "trajectories" / "train" / "0001.jsonl")
    text = path.read_text()
    (tmp_path / "0007").mkdir()
    (tmp_path / "0007" / "adapter_config.json").write_text("{}")
    assert migration.auto_migrate_on_register(tmp_path).files_migrated == 1
    assert not path.exists() and path.with_name("0001.jsonl.migrated").read_text() == text
    assert (tmp_path / "checkpoints" / "0007" / "adapter_config.json").exists()
    assert migration.auto_migrate_on_register(tmp_path) == migration.MigrationResult()


def test_a_checkpoint_never_takes_anothers_place(tmp_path, caplog):
    for folder in ("7", "0008", "checkpoints/0007", "007x"):
        (tmp_path / folder).mkdir(parents=True)
    assert migration.migrate_checkpoints_to_new_structure(tmp_path) == [8]
    assert (tmp_path / "7").exists() and "stays where it is" in caplog.text
