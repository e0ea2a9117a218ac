"""Logs become rows in which each reply is learned once; what is exported is imported as the same rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.chat_completion import Choice

import art
from art.client.sft.sft_rows import row_trajectory
from art.errors import ConfigurationError
from art_extensions.logs import logged_calls
from art_extensions.logs.logged_calls import LoggedCall, LoggedReply
from art_extensions.logs.request_logs import (
    CallFilter,
    LogImport,
    calls_of_rollout,
    least_scores,
    openpipe_record,
    read_log,
    time_of,
    write_log,
    write_rows,
)
from otlp_collector import Collector, collecting

TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
Row = dict[str, Any]


def user(text: str) -> Row:
    return {"role": "user", "content": text}


def said(text: str) -> Row:
    return {"role": "assistant", "content": text}


def record(messages: Sequence[Row], *replies: str, finish_reason: str = "stop", **other: Any) -> Row:
    choices = [{"index": 0, "message": said(one), "finish_reason": finish_reason} for one in replies]
    told = {name: other.pop(name) for name in ("tags",) if name in other}
    return {"request": {"messages": [*messages], **other}, "response": {"choices": choices}, **told}


def import_lines(folder: Path, *lines: Row, **options: Any) -> tuple[list[Row], LogImport]:
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = LogImport([path], **options)
    return list(made.rows()), made


def texts(row: Row) -> list[tuple[str, int | None]]:
    return [(one["content"], one.get("weight")) for one in row["messages"]]


TURNS = [user("1"), said("a"), user("2"), said("b"), user("3")]


def test_the_longest_request_of_a_conversation_is_the_row(tmp_path: Path) -> None:
    lines = [record(TURNS[:1], "a"), record(TURNS, "c"), record(TURNS[:3], "b"), record([user("x")], "y")]
    rows, made = import_lines(tmp_path, *lines)
    assert [texts(row) for row in rows] == [
        [("1", None), ("a", None), ("2", None), ("b", None), ("3", None), ("c", None)],
        [("x", None), ("y", None)],
    ]
    assert made.report.calls == 4 and made.report.rows == 2
    assert made.report.left_out == {"part of a longer conversation": 2}
    everything, _ = import_lines(tmp_path, *lines, keep="all")
    assert [texts(row)[-1] for row in everything] == [("a", None), ("c", None), ("b", None), ("y", None)]
    assert texts(everything[1])[1] == ("a", 0) and texts(everything[1])[3] == ("b", 0)


def test_a_reply_is_learned_once_whatever_shares_it(tmp_path: Path) -> None:
    lines = [
        record(TURNS[:3], "b", "other"),
        record(TURNS[:3], "b"),
        record([*TURNS[:3], said("b"), user("4")], "d"),
    ]
    rows, made = import_lines(tmp_path, *lines)
    assert [texts(row)[1] for row in rows] == [("a", None), ("a", 0)]
    assert [texts(row)[-1] for row in rows] == [("other", None), ("d", None)]
    assert made.report.left_out["part of a longer conversation"] == 2
    again, made = import_lines(tmp_path, record(TURNS[:1], "a"), record(TURNS[:1], "a"))
    assert len(again) == 1 and made.report.left_out == {"duplicates": 1}


def test_a_turn_is_the_same_when_a_program_sends_it_back_with_less(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": '{"a": 1, "b": 2}'}}
    reply = {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [call]}
    sent = {**call, "function": {"name": "look_up", "arguments": '{"b":2,"a":1}'}}
    back = {"role": "assistant", "content": "", "tool_calls": [sent]}
    first = record(TURNS[:1])
    first["response"] = {"choices": [{"message": reply, "finish_reason": "tool_calls"}]}
    later = record(
        [TURNS[0], back, {"role": "tool", "tool_call_id": "1", "content": "x"}], "done", tools=[TOOL]
    )
    rows, _ = import_lines(tmp_path, first, later)
    assert len(rows) == 1 and rows[0]["tools"] == [TOOL] and len(rows[0]["messages"]) == 4


def test_a_reply_that_the_model_did_not_end_is_not_learned(tmp_path: Path) -> None:
    lines = [
        record(TURNS[:1], "a"),
        record(TURNS[:3], "b", finish_reason="length"),
        record(TURNS, "c"),
        record([user("x")], "y"),
        record([user("x"), said("y"), user("z")], "w", finish_reason="length"),
    ]
    rows, made = import_lines(tmp_path, *lines)
    assert texts(rows[0]) == [("1", None), ("a", None), ("2", None), ("b", 0), ("3", None), ("c", None)]
    assert texts(rows[1]) == [("x", None), ("y", None)], "the shorter one stands where the longer is cut off"
    assert made.report.left_out == {"part of a longer conversation": 1, "reply cut off": 2}
    assert "finish_reason is 'length'" in "\n".join(made.report.lines())


FILTERED: list[tuple[CallFilter, list[str]]] = [
    (CallFilter(models=["gpt-*"]), ["a", "b"]),
    (CallFilter(models=["gpt-4", "qwen"]), ["a", "c"]),
    (CallFilter(tags=["env=prod"]), ["a", "c"]),
    (CallFilter(tags=["env", "user=7"]), ["c"]),
    (CallFilter(since=1_700_000_100.0), ["b", "c"]),
    (CallFilter(until=1_700_000_100.0), ["a"]),
    (CallFilter(least_scores={"helpful": 0.5}), ["b", "c"]),
    (CallFilter(least_scores={"helpful": 0.5}, tags=["env=prod"]), ["c"]),
]


@pytest.mark.parametrize(("wanted", "replies"), FILTERED)
def test_calls_are_chosen_by_model_tag_time_and_score(
    tmp_path: Path, wanted: CallFilter, replies: list[str]
) -> None:
    lines = [
        {**record([user("1")], "a", model="gpt-4", tags={"env": "prod"}), "created": 1_700_000_000},
        {
            **record([user("2")], "b", model="gpt-5", tags={"env": "test", "helpful": "1"}),
            "created": 1_700_000_100,
        },
        {
            **record([user("3")], "c", model="qwen", tags={"env": "prod", "user": "7", "helpful": 0.5}),
            "created": 1_700_000_200_000,
        },
    ]
    rows, made = import_lines(tmp_path, *lines, wanted=wanted)
    assert [texts(row)[-1][0] for row in rows] == replies
    assert sum(made.report.left_out.values()) == 3 - len(replies)


def test_a_turn_that_the_filters_leave_out_is_context(tmp_path: Path) -> None:
    lines = [record(TURNS[:1], "a", model="big"), record(TURNS[:3], "b", model="small")]
    rows, _ = import_lines(tmp_path, *lines, wanted=CallFilter(models=["small"]))
    assert [texts(row) for row in rows] == [[("1", None), ("a", 0), ("2", None), ("b", None)]]


def test_a_reply_that_another_call_has_and_the_filters_want_is_learned(tmp_path: Path) -> None:
    lines = [record(TURNS[:1], "a", model=model) for model in ("big", "small")]
    rows, _ = import_lines(
        tmp_path, *lines, record(TURNS, "c", model="small"), wanted=CallFilter(models=["small"])
    )
    assert [texts(row)[1] for row in rows] == [("a", None)]


def test_a_score_of_a_span_is_of_that_span_and_those_below(tmp_path: Path) -> None:
    def span(own: str, parent: str, score: float | None = None) -> Row:
        value = {"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": score}}
        name = {"key": "gen_ai.evaluation.name", "value": {"stringValue": "right"}}
        event = {"name": "gen_ai.evaluation.result", "attributes": [name, value]}
        ids = {"traceId": "t", "spanId": own, "parentSpanId": parent}
        return {**ids, "attributes": [], "events": [] if score is None else [event]}

    def chat(own: str, parent: str, score: float | None = None) -> Row:
        asked, told = ([{"role": role, "content": own}] for role in ("user", "assistant"))
        made = span(own, parent, score)
        for name, one in (("input", asked), ("output", told)):
            value = {"stringValue": json.dumps(one)}
            made["attributes"].append({"key": f"gen_ai.{name}.messages", "value": value})
        return made

    found = [
        span("root", ""),
        span("agent", "root", 1.0),
        chat("below", "agent"),
        chat("beside", "root"),
        chat("own", "root", 0.5),
    ]
    document = {"resourceSpans": [{"scopeSpans": [{"spans": found}]}]}
    rows, made = import_lines(tmp_path, document, wanted=CallFilter(least_scores={"right": 0.1}))
    assert [texts(row)[-1][0] for row in rows] == ["below", "own"]
    assert made.report.left_out == {"score too low or missing": 1, "not a model call": 2}


def test_scores_may_stand_after_their_calls_and_in_other_files(tmp_path: Path) -> None:
    observation = {"traceId": "t", "type": "GENERATION", "input": [user("1")]}
    calls, scores = tmp_path / "observations.jsonl", tmp_path / "scores.json"
    lines = [{**observation, "id": f"o{number}", "output": f"reply {number}"} for number in range(3)]
    calls.write_text("\n".join(map(json.dumps, lines)))
    told = [
        {"traceId": "t", "observationId": None, "name": "helpful", "value": 1},
        {"traceId": "t", "observationId": "o1", "name": "helpful", "value": 0},
    ]
    scores.write_text(json.dumps(told))
    made = LogImport([calls, scores], wanted=CallFilter(least_scores={"helpful": 1}))
    assert [texts(row)[-1][0] for row in made.rows()] == ["reply 0", "reply 2"]
    assert made.report.left_out == {"score too low or missing": 1}


def test_scenarios_are_prompts_with_what_is_known_of_the_call(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Be brief."}
    lines = [
        {**record([system, *TURNS], "c", model="m", tools=[TOOL], tool_choice="auto"), "tags": {"user": "7"}},
        record([system, TURNS[0]], "a", tools=[TOOL], tool_choice="auto"),
        record([system, TURNS[0]], "a"),
        record([said("Hello"), user("1")], "a"),
    ]
    lines[0]["created"] = 0.5
    rows, made = import_lines(tmp_path, *lines, to="scenarios")
    assert [row["messages"] for row in rows] == [[system, TURNS[0]]] * 2
    assert rows[0]["tools"] == [TOOL] and rows[0]["tool_choice"] == "auto" and "tools" not in rows[1]
    known = {"model": "m", "time": "1970-01-01T00:00:00.500000+00:00", "tags": {"user": "7"}}
    assert rows[0]["metadata"] == known and rows[0]["id"] != rows[1]["id"]
    assert made.report.left_out == {"scenario known already": 1, "no prompt before the first reply": 1}


def test_a_file_of_any_size_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    largest = []

    class Counting(json.JSONDecoder):
        def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
            largest.append(len(s))
            return super().raw_decode(s, idx)

    path = tmp_path / "log.json"
    records = [record([user(f"{number} \N{SNOWMAN}")], "x" * 100) for number in range(2_000)]
    path.write_text(json.dumps(records, indent=1, ensure_ascii=False), encoding="utf-8")
    monkeypatch.setattr(logged_calls, "_CHUNK", 4096)
    monkeypatch.setattr(json, "JSONDecoder", Counting)
    found = [one for one in read_log(path) if isinstance(one, LoggedCall)]
    assert [one.messages for one in found] == [one["request"]["messages"] for one in records]
    assert max(largest) < 3 * 4096 < path.stat().st_size / 20


def test_rows_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    _, made = import_lines(tmp_path, record(TURNS, "c"))
    with pytest.raises(ConfigurationError, match="is read: name another file"):
        write_rows(made, tmp_path / "log.jsonl")
    write_rows(made, tmp_path / "out" / "rows.jsonl")
    assert [texts(json.loads(line)) for line in (tmp_path / "out" / "rows.jsonl").open()]
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"question": 1}\n')
    with pytest.raises(ConfigurationError):
        write_rows(LogImport([tmp_path / "log.jsonl", bad]), tmp_path / "second.jsonl")
    write_rows(
        LogImport([tmp_path / "log.jsonl"], wanted=CallFilter(models=["none"])), tmp_path / "third.jsonl"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl", "log.jsonl", "out"]


def test_wrong_words_are_told_with_the_known_ones(tmp_path: Path) -> None:
    for options, message in (({"to": "stf"}, "did you mean 'sft'"), ({"keep": "first"}, "longest, all")):
        with pytest.raises(ConfigurationError, match=message):
            LogImport([tmp_path], **options)
    for word in ("helpful", "=1", "helpful=good"):
        with pytest.raises(ConfigurationError, match="NAME=VALUE"):
            least_scores([word])
    with pytest.raises(ConfigurationError, match="--since 'yesterday' is no time"):
        time_of("--since", "yesterday")
    assert time_of("--since", "1970-01-02") == 86_400.0 and least_scores(["a=b=1"]) == {"a=b": 1.0}


TEXT = st.text(max_size=12)
IMAGE = st.sampled_from(["https://example.org/a.png", "data:image/png;base64,aGk="])
PART = TEXT.map(lambda text: {"type": "text", "text": text}) | IMAGE.map(
    lambda url: {"type": "image_url", "image_url": {"url": url}}
)
CONTENT = TEXT | st.lists(PART, min_size=1, max_size=3)
TOOL_CALL = st.builds(
    lambda id, name, arguments: {
        "id": id,
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    },
    st.text("abc", min_size=1),
    st.text("xyz", min_size=1),
    st.dictionaries(TEXT, TEXT | st.integers() | st.none(), max_size=2),
)
ASKING = CONTENT.map(lambda content: {"role": "user", "content": content})
REPLYING = st.builds(
    lambda content, calls: (
        {"role": "assistant", "content": content} | ({"tool_calls": calls} if calls else {})
    ),
    TEXT,
    st.lists(TOOL_CALL, max_size=2),
) | st.lists(TOOL_CALL, min_size=1, max_size=2).map(lambda calls: {"role": "assistant", "tool_calls": calls})
ANSWERING = st.builds(
    lambda id, content: {"role": "tool", "tool_call_id": id, "content": content},
    st.text("abc", min_size=1),
    TEXT,
)
TOOLS = st.none() | st.lists(
    st.builds(
        lambda name, description: {
            "type": "function",
            "function": {"name": name, "description": description, "parameters": {"type": "object"}},
        },
        st.text("xyz", min_size=1),
        TEXT,
    ),
    min_size=1,
    max_size=2,
)
CALLS = st.builds(
    lambda messages, replies, tools, choice, model, time: LoggedCall(
        messages=messages,
        replies=[LoggedReply(one, "stop") for one in replies],
        tools=tools,
        tool_choice=choice if tools else None,
        model=model,
        tags={"prompt": "a"},
        time=time,
    ),
    st.lists(ASKING | REPLYING | ANSWERING, min_size=1, max_size=4),
    st.lists(REPLYING, min_size=1, max_size=3),
    TOOLS,
    st.sampled_from(["auto", "required", {"type": "function", "function": {"name": "x"}}]),
    st.none() | st.text(min_size=1, max_size=5),
    st.none() | st.integers(1, 2_000_000_000).map(float),
)


@pytest.mark.slow
@given(st.lists(CALLS, min_size=1, max_size=4))
def test_a_call_that_is_exported_is_imported_as_the_same(
    tmp_path_factory: Any, calls: list[LoggedCall]
) -> None:
    path = tmp_path_factory.mktemp("log") / "calls.jsonl"
    path.write_text("".join(json.dumps(openpipe_record(one)) + "\n" for one in calls))
    assert list(read_log(path)) == calls
    for keep in ("longest", "all"):
        made = LogImport([path], keep=keep)
        for row in made.rows():
            row_trajectory("row", row)  # is one that `train_sft` reads
        assert not made.report.broken


def choice(message: Row) -> Choice:
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    return Choice.model_validate({"index": 0, "finish_reason": reason, "message": message})


@st.composite
def rollouts(draw: Any) -> art.Trajectory:
    items: list[Any] = [draw(ASKING), choice(draw(REPLYING))]
    for _ in range(draw(st.integers(0, 2))):
        items += [draw(ASKING | ANSWERING), choice(draw(REPLYING))]
    return art.Trajectory(messages_and_choices=items, tools=draw(TOOLS), reward=draw(st.floats(0, 1)))


def plain(messages: Sequence[Any]) -> list[Row]:
    """Messages as rows have them; spans know no difference between empty and absent content beside calls."""
    told = [{name: value for name, value in dict(one).items() if value is not None} for one in messages]
    return [
        {name: value for name, value in one.items() if value != "" or "tool_calls" not in one} for one in told
    ]


def without_weights(rows: Sequence[Row]) -> list[Row]:
    kept = [[{k: v for k, v in one.items() if k != "weight"} for one in row["messages"]] for row in rows]
    return [
        {"messages": plain(messages), "tools": row.get("tools")}
        for row, messages in zip(rows, kept, strict=True)
    ]


def expected_rows(trajectories: Sequence[art.Trajectory]) -> list[Row]:
    return [{"messages": plain(one.messages()), "tools": one.tools} for one in trajectories]


def distinct(trajectories: list[art.Trajectory]) -> list[art.Trajectory]:
    """With a first message that no other has: equal rollouts are one row."""
    for number, one in enumerate(trajectories):
        one.messages_and_choices.insert(0, {"role": "system", "content": f"rollout {number}"})
    return trajectories


@pytest.mark.slow
@given(st.lists(rollouts(), min_size=1, max_size=3).map(distinct))
def test_rollouts_that_are_exported_are_imported_as_the_same_rows(
    tmp_path_factory: Any, trajectories: list[art.Trajectory]
) -> None:
    path = tmp_path_factory.mktemp("log") / "calls.jsonl"
    calls = [
        call for one in trajectories for call in calls_of_rollout(one, "games/agent", {"reward": one.reward})
    ]
    path.write_text("".join(json.dumps(openpipe_record(one)) + "\n" for one in calls))
    rows = list(LogImport([path]).rows())
    assert all("weight" not in message for row in rows for message in row["messages"])
    assert without_weights(rows) == expected_rows(trajectories)


LOOKED_UP = {
    "id": "c",
    "type": "function",
    "function": {"name": "look_up", "arguments": '{"word": "☃"}'},
}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
EXAMPLES: list[Any] = [
    [
        {"role": "user", "content": [{"type": "text", "text": "né ☃ \N{GRINNING FACE}"}, PICTURE]},
        choice({"role": "assistant", "content": None, "tool_calls": [LOOKED_UP]}),
        {"role": "tool", "tool_call_id": "c", "content": "a man of snow"},
        choice({"role": "assistant", "content": "A man of snow.", "reasoning_content": "It melts."}),
    ],
    [user("Say nothing."), choice(said(""))],
]


def logged(folder: Path) -> tuple[art.Model, list[art.Trajectory]]:
    model = art.Model(name="agent", project="games", base_path=str(folder), report_metrics=[])
    trajectories = [
        art.Trajectory(
            messages_and_choices=items, tools=[TOOL], reward=float(number), rollout_id=f"r-{number}"
        )
        for number, items in enumerate(EXAMPLES)
    ]
    return model, trajectories


@pytest.mark.parametrize("format", ["openpipe", "otlp"])
async def test_the_log_of_a_model_is_exported_and_imported(tmp_path: Path, format: str) -> None:
    model, trajectories = logged(tmp_path)
    await model.log([art.TrajectoryGroup(trajectories)], split="val", step=3)
    path = tmp_path / "calls.jsonl"
    assert write_log("games/agent", path, format=format, data_dir=tmp_path) == 2
    assert without_weights(list(LogImport([path]).rows())) == expected_rows(trajectories)
    if format == "otlp":  # opentelemetry.io/docs/specs/otlp: ids are hex, enumerations are numbers
        (span, *_) = json.loads(path.read_text())["resourceSpans"][0]["scopeSpans"][0]["spans"]
        assert len(bytes.fromhex(span["traceId"])) == 16 and len(bytes.fromhex(span["spanId"])) == 8
        assert isinstance(span["kind"], int)
    scored = LogImport([path], wanted=CallFilter(least_scores={"reward": 1}))
    assert without_weights(list(scored.rows())) == expected_rows(trajectories[1:])
    (first, *_) = LogImport([path], to="scenarios").rows()
    assert first["messages"] == plain(EXAMPLES[0][:1])
    told = first["metadata"]["tags"]
    assert (told["rollout"] if format == "openpipe" else told["art.rollout"]) == "r-0"
    with pytest.raises(ConfigurationError, match="val 3"):
        write_log("games/agent@4", path, data_dir=tmp_path)
    with pytest.raises(ConfigurationError, match="openpipe, otlp"):
        write_log("games/agent", path, format="csv", data_dir=tmp_path)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
        yield found


async def test_spans_as_a_collector_gets_them_are_imported_as_the_same_rows(
    tmp_path: Path, collector: Collector
) -> None:
    from google.protobuf.json_format import MessageToJson
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    model, trajectories = logged(tmp_path)
    model.report_metrics = ["otel"]
    await model.log([art.TrajectoryGroup(trajectories)], split="val", step=3)
    path = tmp_path / "spans.json"
    path.write_text(
        "\n".join(MessageToJson(ExportTraceServiceRequest.FromString(one)) for one in collector.bodies)
    )
    made = LogImport([path], wanted=CallFilter(least_scores={"reward": 0}))
    assert without_weights(list(made.rows())) == expected_rows(trajectories)
    assert made.report.left_out["part of a longer conversation"] == 1 and not made.report.broken


def test_a_history_without_completions_is_a_call_of_its_last_message() -> None:
    given_rows = art.Trajectory(messages_and_choices=[*TURNS, said("c")])
    (call,) = calls_of_rollout(given_rows, "m", {})
    assert call.messages == TURNS and call.replies == [LoggedReply(said("c"))]
    assert not list(calls_of_rollout(art.Trajectory(messages_and_choices=TURNS), "m", {}))
    assert replace(call, where="elsewhere") == call


@pytest.mark.slow
async def test_a_model_is_trained_on_imported_rows(tmp_path: Path) -> None:
    questions = [f"{verb} with yes, no or maybe" for verb in ("respond", "answer", "reply", "say")]
    rows, _ = import_lines(tmp_path, *(record([user(one)], "maybe") for one in questions))
    model = art.TrainableModel(name="agent", project="imports", base_model="art/nano")
    async with art.LocalBackend(path=tmp_path / ".art") as backend:
        await model.register(backend)
        first = await model.train_sft(rows, art.TrainSFTConfig(learning_rate=3e-3, batch_size=4))
        for _ in range(5):
            last = await model.train_sft(rows, art.TrainSFTConfig(learning_rate=3e-3, batch_size=4))
        assert last.metrics["loss/train"] < first.metrics["loss/train"] / 2
        assert last.step == 6
