"""Tools, resources and scenarios of MCP servers."""

from __future__ import annotations

import random

import pytest

from art.mcp import (
    GeneratedScenario,
    GeneratedScenarioCollection,
    MCPResource,
    MCPTool,
    complete_task_tool,
)
from art.mcp.generate_scenarios import preview_scenarios


def scenarios(*difficulties: int) -> GeneratedScenarioCollection:
    return GeneratedScenarioCollection(
        [GeneratedScenario(f"task {place}", level) for place, level in enumerate(difficulties)]
    )


def test_a_tool_becomes_an_openai_tool() -> None:
    tool = MCPTool("look_up", "Look up a name", {"type": "object", "properties": {}})
    assert MCPTool.from_dict(tool.to_dict()) == tool
    assert tool.to_tool_schema() == {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look up a name",
            "parameters": {"type": "object", "properties": {}},
        },
    }
    assert complete_task_tool.name == "complete_task"
    assert complete_task_tool.parameters["required"] == ["summary"]


def test_a_resource_is_spelt_as_the_protocol_does() -> None:
    plain = MCPResource("file:///a", "a", "a file")
    assert plain.to_dict() == {"uri": "file:///a", "name": "a", "description": "a file"}
    typed = MCPResource.from_dict({**plain.to_dict(), "mimeType": "text/plain"})
    assert typed.mime_type == "text/plain" and typed.to_dict()["mimeType"] == "text/plain"
    assert MCPResource.from_dict({**plain.to_dict(), "mime_type": "text/plain"}) == typed


@pytest.mark.parametrize("difficulty", [0, 6, "3", 2.5, True])
def test_difficulty_is_one_to_five(difficulty: object) -> None:
    with pytest.raises(ValueError, match="Difficulty must be an integer between 1 and 5"):
        GeneratedScenario("x", difficulty)  # type: ignore[arg-type]


def test_long_tasks_are_cut_for_the_preview() -> None:
    assert GeneratedScenario("x" * 120, 1).preview() == "x" * 120
    assert GeneratedScenario("x" * 121, 1).preview() == "x" * 120 + "…"
    assert GeneratedScenario("abcdef", 1).preview(max_length=3) == "abc…"


@pytest.mark.parametrize(
    "text",
    [
        '{"scenarios": [{"task": "a", "difficulty": 2}]}',
        '[{"task": "a", "difficulty": 2}]',
        '{"items": [{"task": "a", "difficulty": 2}]}',
    ],
)
def test_json_of_several_shapes(text: str) -> None:
    read = GeneratedScenarioCollection.from_json(text)
    assert list(read) == [GeneratedScenario("a", 2)]
    assert GeneratedScenarioCollection.from_json(read.to_json(indent=2)).to_dicts() == read.to_dicts()


def test_json_without_a_list_is_refused() -> None:
    with pytest.raises(ValueError, match="no list of scenarios"):
        GeneratedScenarioCollection.from_json('{"scenarios": 3}')


def test_split_filter_and_index() -> None:
    whole = scenarios(1, 2, 3, 4, 5)
    train, test = whole.split(3)
    assert (len(train), len(test)) == (3, 2) and whole[0] == train[0] and whole[3:] == list(test)
    assert [s.difficulty for s in whole.filter_by_difficulty(2, 3)] == [2, 3]
    assert max(s.difficulty for s in whole.filter_by_difficulty(max_difficulty=2)) == 2
    assert min(s.difficulty for s in whole.filter_by_difficulty(min_difficulty=2)) == 2
    assert isinstance(whole[1:2], list)
    with pytest.raises(ValueError, match="only 5 scenarios"):
        whole.split(6)


def test_shuffle_makes_a_new_collection_that_a_seed_decides() -> None:
    whole = scenarios(*[1] * 20)
    random.seed(3)
    first = whole.shuffle()
    random.seed(3)
    assert whole.shuffle().to_dicts() == first.to_dicts() != whole.to_dicts()
    assert sorted(s.task for s in first) == sorted(s.task for s in whole)


def test_counts(capsys: pytest.CaptureFixture[str]) -> None:
    whole = scenarios(1, 1, 5)
    assert whole.get_difficulty_distribution() == {1: 2, 5: 1}
    assert whole.get_summary() == {
        "total_scenarios": 3,
        "difficulty_distribution": {1: 2, 5: 1},
        "avg_difficulty": 7 / 3,
        "avg_task_length": 6,
    }
    assert scenarios().get_summary()["avg_difficulty"] == 0
    whole.print_difficulty_distribution()
    preview_scenarios(whole, n=1)
    shown = capsys.readouterr().out
    assert "1/5:   2  ██" in shown and "1. task 0 (difficulty 1/5)" in shown and "task 1" not in shown


def test_a_preview_of_plain_dicts(capsys: pytest.CaptureFixture[str]) -> None:
    """What a notebook makes of the collection before it shuffles and shows it."""
    preview_scenarios([{"task": one.task, "difficulty": one.difficulty} for one in scenarios(2, 4)], n=9)
    assert capsys.readouterr().out == "1. task 0 (difficulty 2/5)\n2. task 1 (difficulty 4/5)\n"


def test_a_preview_is_a_list_of_lines() -> None:
    whole = GeneratedScenarioCollection([GeneratedScenario(f"task {i}", 1 + i) for i in range(3)])
    lines = whole.preview(2)
    assert isinstance(lines, list) and len(lines) == 2 and "task 0" in lines[0]
