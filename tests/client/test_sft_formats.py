"""Rows as people have them: each known format is one conversation, any other is told how to convert it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars
import pytest

import art
from art.client.sft import sft_request as sft
from art.client.sft.sft_rows import row_trajectory, sft_trajectories
from art.errors import ConfigurationError
from art.types import TrainSFTConfig
from art.utils.sft import create_sft_dataset_iterator, get_file_row_count, iterate_file

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-frameworks" / "bin" / "python"
MISSING = not PYTHON.exists() and not os.environ.get("ART_TEST_EVERYTHING")

ASKED = {"role": "user", "content": "2 + 2?"}
TOLD = {"role": "assistant", "content": "4"}
SAME: list[Any] = [
    {"messages": [ASKED, TOLD], "id": 7},
    {"conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]},
    {"conversation": [{"role": "human", "content": "2 + 2?"}, {"role": "gpt", "content": "4"}]},
    {"messages": [{"from": "user", "value": "2 + 2?"}, {"role": "Assistant", "value": "4", "content": None}]},
    {"prompt": "2 + 2?", "completion": "4"},
    {"prompt": [ASKED], "completion": [TOLD]},
    {"prompt": [ASKED], "completion": "4"},
    {"prompt": "2 + 2?", "completion": TOLD},
    {"messages": None, "prompt": "2 + 2?", "completion": "4", "tools": None},
    {"prompt": "another text", "messages": [{**ASKED, "name": None, "tool_calls": None}, TOLD]},
    art.Trajectory(messages_and_choices=[ASKED, TOLD]),
]


def read(row: Any) -> list[Any]:
    return row_trajectory("row", row).messages_and_choices


@pytest.mark.parametrize("row", SAME)
def test_each_format_is_the_same_conversation(row: Any) -> None:
    (trajectory,) = sft_trajectories([row])
    assert trajectory.messages_and_choices == [ASKED, TOLD] and trajectory.tools is None


def test_a_job_and_the_chunks_of_a_run_take_rows() -> None:
    made = sft.sft_request("j", SAME, TrainSFTConfig(batch_size=100), None)
    assert made is not None
    assert [one.messages for one in made.conversations] == [[ASKED, TOLD]]
    assert made.batches == [[0] * len(SAME)], (
        "a conversation that comes again is sent once, whatever its form"
    )
    (chunk,) = create_sft_dataset_iterator(SAME, batch_size=100, show_progress=False)
    assert len(chunk.trajectories) == len(SAME)
    assert all(one.messages_and_choices == [ASKED, TOLD] for one in chunk.trajectories)


def test_an_assistant_of_the_prompt_is_context() -> None:
    row = {"prompt": [ASKED, TOLD, ASKED], "completion": [TOLD]}
    assert read(row) == [ASKED, {**TOLD, "weight": 0}, ASKED, TOLD]


def test_systems_and_their_place() -> None:
    system = {"role": "system", "content": "Be brief."}
    turns = [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4", "weight": 0.5}]
    told = [system, ASKED, {**TOLD, "weight": 0.5}]
    assert read({"system": "Be brief.", "conversations": turns}) == told
    assert read({"conversations": [{"from": "system", "value": "Be brief."}, *turns]}) == told
    assert read({"system": "other", "messages": told}) == told, "the conversation's own system message stays"


def test_calls_and_results_find_each_other() -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    schema = [{"type": "function", "function": {"name": "add"}}]
    row = {
        "tools": json.dumps(schema),
        "conversations": [
            {"from": "human", "value": "2 + 2?"},
            {"role": "assistant", "tool_calls": [call, {**call, "id": "mine"}], "content": None},
            {"from": "observation", "value": "4"},
            {"from": "tool", "value": "4"},
            {"from": "gpt", "value": "4"},
        ],
    }
    trajectory = row_trajectory("row", row)
    _, called, first, second, _ = trajectory.messages_and_choices
    assert trajectory.tools == schema
    assert [one["id"] for one in called["tool_calls"]] == ["call_1_0", "mine"]
    assert (first["tool_call_id"], second["tool_call_id"]) == ("call_1_0", "mine")
    assert "id" not in call, "the caller's row is left as it was"


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (
            {"instruction": "Add.", "input": "2 2", "output": "4"},
            r"row 1 has the keys 'instruction', 'input', 'output'.*"
            r'"prompt": row\["instruction"\] \+ row.get\("input", ""\), "completion": row\["output"\]',
        ),
        ({"question": "?", "answer": "!"}, r'"prompt": row\["question"\], "completion": row\["answer"\]'),
        ({"text": "once"}, r"row 1 has the keys 'text', and no known format: \"messages\".*ASKED.*ANSWERED"),
        ({"message": [ASKED, TOLD]}, "did you mean 'messages'"),
        ({"prompt": "?", "completions": "!"}, "did you mean 'completion'"),
        ({}, r"has the keys \(none\)"),
        ({"messages": None}, r"has the keys 'messages' \(null\), and no known format"),
        (ASKED, r'this is one message\. A row holds a conversation: \{"messages": \[\.\.\.\]\}'),
        (
            {"conversations": [{"from": "function_call", "value": "{}"}]},
            r"\[0\] is of role 'function_call'.*tool_calls",
        ),
        ({"messages": [ASKED, {"role": "asistant"}]}, r"messages\[1\] is of role 'asistant', did you mean"),
        ({"messages": ["hi"]}, r"row 1, messages\[0\] is 'hi', not a message"),
        ({"messages": [TOLD, ASKED]}, "the last message is of role 'user'.*leave it out"),
        ({"messages": [TOLD], "tools": "{"}, "tools is a text that is not valid JSON"),
        ({"messages": [TOLD], "tools": {"name": "f"}}, "tools is .* not a list of tools"),
    ],
)
def test_another_format_is_told_with_the_row_its_keys_and_the_conversion(row: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        sft_trajectories([SAME[0], row])


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ("data.jsonl", r"'data\.jsonl' is a path: use art\.utils\.sft\.train_sft_from_file"),
        (Path("data.jsonl"), "is a path"),
        ({"train": SimpleNamespace(column_names=["messages"])}, r"holds splits: give one.*\['train'\]"),
        (SAME[0], "a dict is one row, or columns: give a list of rows"),
        ({"a": 1}, "a dict with the keys 'a' is no list of rows"),
        (polars.DataFrame({"prompt": ["a"], "completion": ["b"]}), r"gives its columns.*data\.to_dicts\(\)"),
    ],
)
def test_what_holds_rows_is_told_how_to_give_them(rows: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        sft_trajectories(rows)


def test_files_of_each_kind_have_the_same_rows(tmp_path: Path) -> None:
    rows = [{"messages": [ASKED, {**TOLD, "content": str(n)}]} for n in range(3)]
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=1))
    (tmp_path / "b.json").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))
    polars.DataFrame(rows).write_parquet(tmp_path / "d.parquet")
    for path in sorted(tmp_path.iterdir()):
        read = list(iterate_file(path, shuffle_buffer_size=1))
        assert get_file_row_count(path) == 3
        assert [{"messages": one.messages_and_choices} for one in read] == rows, path


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.json", "[{}, ]", r"a\.json is not valid JSON"),
        ("b.json", '[{"messages": [], "x": 1}]', r"b\.json, row 0: the last message is of role None"),
        ("c.json", '{"text": "once"}', r"c\.json, line 1 has the keys 'text'"),
    ],
)
def test_a_bad_row_of_a_file_is_told_with_its_place(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigurationError, match=problem):
        list(iterate_file(tmp_path / name))


def test_columns_that_are_filled_up_with_nulls(tmp_path: Path) -> None:
    """Parquet gives every message the keys of all."""
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    said = [ASKED, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "4"}, TOLD]
    polars.DataFrame([{"messages": said}, {"messages": [ASKED, TOLD]}]).write_parquet(tmp_path / "d.parquet")
    first, second = iterate_file(tmp_path / "d.parquet", shuffle_buffer_size=1)
    assert first.messages_and_choices == [*said[:2], {**said[2], "tool_call_id": "c"}, TOLD]
    assert second.messages_and_choices == [ASKED, TOLD]


@pytest.mark.slow
@pytest.mark.frameworks
@pytest.mark.skipif(MISSING, reason=f"no {PYTHON.parents[1].name}: `make .venv-frameworks/.installed`")
def test_a_dataset_of_the_real_library(tmp_path: Path) -> None:
    """The environment has pyarrow and no polars: its Parquet file is read by the one that is there."""
    program = Path(__file__).parent / "programs" / "datasets_rows.py"
    done = subprocess.run(
        [str(PYTHON), str(program), str(tmp_path / "data.parquet")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    talk, short = [[ASKED, TOLD], [{**ASKED, "content": "a"}, {**TOLD, "content": "b"}]]
    assert told["rows"] == [talk, short] == told["parquet"]
    assert told["stream"] == told["chunk"] == told["rows"]
    assert told["map"] == [short]
    assert "a DatasetDict holds splits: give one of them, such as data['train']" in told["splits"]
    assert "a Table gives its columns: give its rows, data.to_pylist()" in told["table"]
    assert 'a DataFrame gives its columns: give its rows, data.to_dict("records")' in told["pandas"]
