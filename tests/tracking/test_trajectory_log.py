from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import polars
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat.chat_completion import Choice
from pydantic import BaseModel

import art
from art.errors import TrajectoryLogError
from art.tracking.trajectory_log.json_lines import (
    deserialize_trajectory_groups,
    serialize_trajectory_groups,
)
from art.trajectories import PydanticException
from art.utils.trajectory_logging import (
    append_groups,
    read_trajectory_groups_parquet,
    write_trajectory_groups_parquet,
)

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
IMAGE = [
    {"type": "text", "text": "what is this?"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
]


def reply(content: str | None = "hi", **extra: Any) -> Choice:
    message = {"role": "assistant", "content": content, **extra.pop("message", {})}
    return Choice.construct(
        **{"index": 0, "finish_reason": "stop", "logprobs": None, "message": message, **extra}
    )


def full_group() -> art.TrajectoryGroup:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    logprobs = {"content": [{"token": "hi", "bytes": [104, 105], "logprob": -0.125, "top_logprobs": []}]}
    trajectory = art.Trajectory(
        messages_and_choices=[
            {"role": "system", "content": "s", "name": "me"},
            {"role": "user", "content": IMAGE},
            reply(None, sample_id="s1", step=3, logprobs=logprobs, message={"tool_calls": [call]}),
            {"role": "tool", "tool_call_id": "c1", "content": "4"},
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
            reply("done", sample_id="s2", message={"reasoning": "because"}),
        ],
        tools=[TOOL],
        additional_histories=[art.History(messages_and_choices=[reply("sub", sample_id="s3")], tools=[TOOL])],
        reward=0.1 + 0.2,
        initial_policy_version=2,
        final_policy_version=3,
        metrics={"turns": 3, "won": True, "seconds": 1.5, "huge": 2**80},
        metadata={"scenario_id": "a", "n": 1, "x": 1.0, "ok": False, "none": None},
        logs=["one", "two\n"],
        rollout_id="r1",
    )
    unscored = art.Trajectory(reward=art.Unscored("the judge is down"))
    return art.TrajectoryGroup(
        [trajectory, unscored, ValueError("boom")],
        metadata={"scenario_id": "a"},
        metrics={"judge": 0.5},
        logs=["group"],
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


text = st.text(st.characters(exclude_categories=()), max_size=8)  # lone surrogates and NUL among them
scalar = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text
tree = st.recursive(
    scalar, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3)
)
message = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "system", "assistant", "tool"])},
    optional={
        "content": st.none() | text | st.lists(st.dictionaries(text, tree, max_size=2), max_size=2),
        "tool_calls": st.lists(st.dictionaries(text, tree, max_size=2), max_size=2),
        "tool_call_id": text,
        "name": text,
        "reasoning": st.none() | text,
    },
)
choice = st.builds(
    reply, st.none() | text, sample_id=text, message=st.dictionaries(st.just("reasoning"), text), extra=tree
)
turns = st.lists(message | choice, max_size=4)
histories = st.builds(
    art.History,
    messages_and_choices=turns,
    tools=st.none() | st.lists(st.dictionaries(text, tree), max_size=2),
)
metrics = st.dictionaries(text, st.booleans() | st.integers() | st.floats(allow_nan=False), max_size=3)
trajectory = st.builds(
    art.Trajectory,
    messages_and_choices=turns,
    tools=st.none() | st.lists(st.dictionaries(text, tree, max_size=2), max_size=2),
    additional_histories=st.lists(histories, max_size=2),
    reward=st.floats(allow_nan=False) | st.builds(art.Unscored, text),
    initial_policy_version=st.none() | st.integers(),
    metrics=metrics,
    metadata=st.dictionaries(text, scalar, max_size=3),
    logs=st.lists(text, max_size=2),
    start_time=(st.datetimes() | st.datetimes(timezones=st.just(UTC))).map(lambda t: t.replace(fold=0)),
    rollout_id=st.none() | text,
)
group = st.builds(
    art.TrajectoryGroup,
    st.lists(trajectory, max_size=3),
    exceptions=st.lists(st.builds(PydanticException, type=text, message=text, traceback=text), max_size=2),
    metadata=st.dictionaries(text, scalar, max_size=2),
    metrics=metrics,
    logs=st.lists(text, max_size=2),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups=st.lists(group, max_size=3), more=st.lists(group, max_size=2))
def test_what_is_written_is_what_is_read(tmp_path, groups, more):
    path = tmp_path / "log.parquet"
    write_trajectory_groups_parquet(groups, path)
    append_groups(path, more)
    again = read_trajectory_groups_parquet(path)
    assert again == groups + more
    assert repr(again) == repr(groups + more)  # 1 is not True, and not 1.0


@settings(max_examples=20, deadline=None)
@given(groups=st.lists(group, max_size=3))
def test_json_lines_keep_all_but_log_probabilities(groups):
    again = deserialize_trajectory_groups(serialize_trajectory_groups(groups))
    assert again == groups
    assert repr(again) == repr(groups)
