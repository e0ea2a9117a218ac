"""Rows as people have them: each known format is one conversation, any other is told how to convert it."""

from __future__ import annotations

import json
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


def test_a_job_takes_rows() -> None:
    made = sft.sft_request("j", SAME, TrainSFTConfig(batch_size=100), None)
    assert made is not None
    assert [one.messages for one in made.conversations] == [[ASKED, TOLD]]
    assert made.batches == [[0] * len(SAME)], (
        "a conversation that comes again is sent once, whatever its form"
    )


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
