"""Scenarios written by a model behind a real endpoint, which may misbehave."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest

import troublesome
from art.errors import BudgetExceededError, ConfigurationError
from art.process import environment
from art.rewards.llm.budget import Budget
from art_extensions.scenarios.mcp import GeneratedScenario, MCPResource, MCPTool
from art_extensions.scenarios.mcp_rl.generate_scenarios import (
    answer_schema,
    generate_scenarios,
    generation_prompt,
)
from art_extensions.testing import LlmServer, Mischief, ScriptedGenerator

TOOLS = [
    MCPTool("look_up", "Look up a word.", {"type": "object", "properties": {"word": {"type": "string"}}}),
    MCPTool("spell", "Spell a word.", {"type": "object", "properties": {}}),
]
RESOURCE = MCPResource("file:///words", "words", "All words.")


def written(count: int) -> list[dict[str, Any]]:
    return [{"task": f"Task number {place}", "difficulty": 1 + place % 5} for place in range(count)]


async def ask(server: LlmServer, count: int = 6, **options: Any) -> list[GeneratedScenario]:
    options = {"tools": TOOLS, **options}
    chosen = {"generator_base_url": server.base_url, "generator_api_key": server.key, **options}
    return list(await generate_scenarios(num_scenarios=count, **chosen))


def test_it_is_a_coroutine_function_with_the_known_arguments() -> None:
    parameters = list(inspect.signature(generate_scenarios).parameters)
    assert inspect.iscoroutinefunction(generate_scenarios)
    assert parameters[:8] == [
        *("tools", "resources", "num_scenarios", "show_preview", "custom_instructions"),
        *("generator_model", "generator_api_key", "generator_base_url"),
    ]


async def test_what_is_asked_and_what_comes_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    with LlmServer(ScriptedGenerator(scenarios=written(6))) as server:
        found = await ask(server, resources=[RESOURCE.to_dict()], custom_instructions="Rhyme.")
    assert [one.to_dict() for one in found] == written(6)
    body = server.requests[0]
    assert body["model"] == "openai/gpt-4.1-mini"  # the endpoint is sent the name as it was written
    assert 8000 in (body.get("max_completion_tokens"), body.get("max_tokens"))
    assert body["response_format"]["json_schema"]["name"] == "scenario_list"
    scenarios = body["response_format"]["json_schema"]["schema"]["properties"]["scenarios"]
    assert scenarios["minItems"] == scenarios["maxItems"] == 6
    prompt = body["messages"][0]["content"]
    for part in (
        *('"name": "look_up"', "file:///words", "exactly 6 scenarios", "difficulty"),
        "The task should always include generating a summary of the work done and a thorough analysis",
    ):
        assert part in prompt
    assert prompt.endswith("instructions when generating scenarios:\nRhyme.")
    shown = capsys.readouterr().out
    assert "1/5:   2" in shown and "1. Task number 0" in shown


async def test_without_preview_only_the_difficulties_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with LlmServer(ScriptedGenerator(scenarios=written(6))) as server:
        await ask(server, show_preview=False, tools=[tool.to_dict() for tool in TOOLS])
    shown = capsys.readouterr().out
    assert "5/5:" in shown and "Task number" not in shown


async def test_resources_alone_will_do() -> None:
    with LlmServer(ScriptedGenerator(scenarios=written(3))) as server:
        assert len(await ask(server, 3, tools=[], resources=[RESOURCE])) == 3
    assert "Tools:\n[]" in server.requests[0]["messages"][0]["content"]
    assert "No resources available" in generation_prompt(TOOLS, [], 3)


async def test_the_tools_of_a_server() -> None:
    with LlmServer(ScriptedGenerator(scenarios=written(2))) as server:
        found = await ask(server, 2, tools=None, server_url=troublesome.create_server())
        assert len(found) == 2
        with pytest.raises(ConfigurationError, match="not both"):
            await ask(server, server_url="http://127.0.0.1:1/mcp")
    prompt = server.requests[0]["messages"][0]["content"]
    assert '"name": "add"' in prompt and "trouble://list" in prompt


async def test_what_is_missing_is_asked_for_again() -> None:
    stock = iter([written(4), written(4), [{"task": "A new one", "difficulty": 3}]])

    def short(body: Any, count: int) -> list[dict[str, Any]]:
        return next(stock)

    with LlmServer(ScriptedGenerator(scenarios=short)) as server:
        found = await ask(server, 5)
    assert [one.task for one in found] == [*(f"Task number {place}" for place in range(4)), "A new one"]
    again = server.requests[1]["messages"][0]["content"]
    assert "exactly 1 scenarios" in again and "- Task number 3" in again


async def test_too_many_are_cut() -> None:
    with LlmServer(ScriptedGenerator(scenarios=lambda body, count: written(count + 3))) as server:
        assert len(await ask(server, 5)) == 5
    assert len(server.requests) == 1


async def test_a_model_that_repeats_itself_ends_in_the_known_words() -> None:
    with (
        LlmServer(ScriptedGenerator(scenarios=written(2))) as server,
        pytest.raises(ValueError, match="Expected 5 scenarios, got 2"),
    ):
        await ask(server, 5)
    assert len(server.requests) == 5


async def test_malformed_scenarios_are_left_out_and_made_up_for() -> None:
    odd = [{"task": "Good", "difficulty": "3"}, {"task": "Bad", "difficulty": 9}, {"difficulty": 1}, "text"]
    stock = iter([odd, written(3)])
    with LlmServer(ScriptedGenerator(scenarios=lambda body, count: next(stock))) as server:
        found = await ask(server, 4)
    assert [(one.task, one.difficulty) for one in found][:2] == [("Good", 3), ("Task number 0", 1)]


async def test_an_answer_that_is_no_json_is_asked_for_again_with_the_error() -> None:
    stock = iter(["I would rather not.", json.dumps({"scenarios": written(2)})])
    with LlmServer(lambda body: next(stock)) as server:
        assert len(await ask(server, 2)) == 2
    assert len(server.requests[1]["messages"]) > len(server.requests[0]["messages"])


async def test_an_answer_too_long_for_the_model_comes_in_halves() -> None:
    def only_few(body: dict[str, Any]) -> str:
        asked = body["response_format"]["json_schema"]["schema"]["properties"]["scenarios"]["maxItems"]
        told = body["messages"][0]["content"].count("- Task number")
        text = json.dumps({"scenarios": written(told + asked)[told:]})
        return text if asked <= 4 else text[:150]

    with LlmServer(only_few) as server:
        assert len(await ask(server, 9)) == 9


async def test_an_endpoint_without_schemas_is_asked_in_words() -> None:
    with LlmServer(ScriptedGenerator(scenarios=written(3)), formats=("json_object", "text")) as server:
        assert len(await ask(server, 3)) == 3


async def test_mischief_costs_time_alone() -> None:
    trouble = Mischief(busy=0.2, fault=0.2, truncated=0.2, seed=3)
    with LlmServer(ScriptedGenerator(scenarios=written(6)), mischief=trouble) as server:
        assert [one.to_dict() for one in await ask(server, 6)] == written(6)


async def test_a_function_writes_as_well() -> None:
    found = await generate_scenarios(
        TOOLS, num_scenarios=2, generator_model=lambda messages: {"scenarios": written(2)}
    )
    assert len(found) == 2


async def test_a_budget_ends_it() -> None:
    def endless(messages: Any) -> dict[str, Any]:
        return {"scenarios": [{"task": "The only one", "difficulty": 1}]}

    with pytest.raises(BudgetExceededError):
        await generate_scenarios(TOOLS, num_scenarios=3, generator_model=endless, budget=Budget(calls=2))


async def test_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(environment.OPENROUTER_API_KEY, raising=False)
    with pytest.raises(
        ValueError, match="generator_api_key is required or OPENROUTER_API_KEY env var must be set"
    ):
        await generate_scenarios(TOOLS)
    with LlmServer(ScriptedGenerator(scenarios=written(1))) as server:
        # On this machine none is needed; it is the endpoint that refuses, if anyone.
        with pytest.raises(ConfigurationError, match="does not accept the key"):
            await ask(server, 1, generator_api_key=None)


async def test_nothing_to_write_about() -> None:
    with pytest.raises(ValueError, match="At least one tool or resource must be provided"):
        await generate_scenarios([], generator_api_key="k")
    with pytest.raises(ConfigurationError, match="num_scenarios must be at least 1"):
        await generate_scenarios(TOOLS, num_scenarios=0, generator_api_key="k")


def test_the_schema_asks_for_a_plan_where_one_is_wanted() -> None:
    plain, planned = (answer_schema(2, plans=plans) for plans in (False, True))
    assert "plan" not in json.dumps(plain) and '"plan"' in json.dumps(planned)
    assert '"plan": [{"tool"' in generation_prompt(TOOLS, [], 2, plans=True)
