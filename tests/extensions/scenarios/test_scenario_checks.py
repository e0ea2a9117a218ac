"""What generated scenarios must pass before anything is trained on them."""

from __future__ import annotations

import logging
import re
import sys
from typing import Any

import pytest

import troublesome
from art.errors import ConfigurationError, LlmAnswerError, McpError
from art.rewards.llm.channel import Channel
from art.rewards.llm.names import resolve_llm
from art.trajectories import Trajectory
from art_extensions.scenarios.mcp import MCPTool, StdioServer, connect
from art_extensions.scenarios.mcp.types import PlannedCall, PlannedScenario, as_planned
from art_extensions.scenarios.mcp_rl.checked_scenarios import (
    ScenarioChecks,
    ScenarioSet,
    clean_finish,
    generate_checked,
    learnable_first,
    measure_difficulty,
)
from art_extensions.scenarios.mcp_rl.scenario_checks import (
    PlanProbe,
    check_plan,
    near_duplicate,
    select_spread,
    split_apart,
    tool_counts,
)
from art_extensions.testing import LlmServer, ScriptedGenerator

TOOLS = [
    MCPTool(
        "add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, True
    ),
    MCPTool("count", "Count.", {"type": "object", "properties": {}}, True),
    MCPTool("write", "Write.", {"type": "object", "properties": {}}, False),
    MCPTool("unmarked", "Who knows?", {"type": "object", "properties": {}}),
    MCPTool("far", "Its schema is elsewhere.", {"$ref": "http://127.0.0.1:1/schema.json"}, True),
]


def planned(task: str, *calls: tuple[str, dict[str, Any]], difficulty: int = 1) -> PlannedScenario:
    return PlannedScenario(task, difficulty, tuple(PlannedCall(tool=t, arguments=a) for t, a in calls))


def reason(scenario: PlannedScenario, **options: Any) -> str | None:
    found = check_plan(scenario, TOOLS, **options)
    return None if found is None else found.reason


def test_plans_are_held_against_the_tools() -> None:
    assert reason(planned("a", ("add", {"a": 1}), ("count", {}))) is None
    assert reason(planned("no plan")) is None
    assert reason(planned("a", ("multiply", {}))) == "unknown_tool"
    assert reason(planned("a", ("add", {"a": "one"}))) == "bad_arguments"
    assert reason(planned("a", ("add", {}))) == "bad_arguments"
    assert reason(planned("a", ("far", {"x": 1}))) is None  # nothing is fetched to find out
    for name in ("write", "unmarked"):
        assert reason(planned("a", (name, {}))) == "writes"
        assert reason(planned("a", (name, {})), allow_writes=[name]) is None
        assert reason(planned("a", (name, {})), allow_writes=True) is None


def test_what_is_wrong_is_told() -> None:
    found = check_plan(planned("a", ("multiply", {})), TOOLS)
    assert found is not None and "'multiply'; the server has add, count" in found.detail
    found = check_plan(planned("a", ("add", {"a": "one"})), TOOLS)
    assert found is not None and "'one' is not of type 'integer'" in found.detail


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("Give me the weather in Oslo.", "Please give me the weather in Oslo!"),
        ("Get the forecast for Oslo and Rome", "get the forecasts for Rome and Oslo"),
        (
            "Find every open invoice of the last quarter, add up the amounts by customer, and write a short "
            "report that explains which customers are late and by how much",
            "Find every open invoice of the last quarter, add up the amounts by customer, and write a brief "
            "report that explains which customers are late and by how much",
        ),
    ],
)
def test_the_same_in_other_words(one: str, two: str) -> None:
    assert near_duplicate(planned(one), [planned("something else"), planned(two)]) == planned(two)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("Give me the weather in Oslo.", "Give me the weather in Rome."),
        ("Sum up the orders of 2023", "Sum up the orders of 2024"),
        ("Which books are late?", "Which members have late books?"),
        (
            "Find every open invoice of Miller and Sons, add up the amounts by customer, and report",
            "Find every open invoice of Baker and Sons, add up the amounts by customer, and report",
        ),
    ],
)
def test_other_tasks(one: str, two: str) -> None:
    assert near_duplicate(planned(one), [planned(two)]) is None


def test_plans_tell_tasks_apart() -> None:
    one, two = ("flights from Oslo to Rome", "flights from Rome to Oslo")
    assert near_duplicate(planned(one), [planned(two)]) is not None
    assert near_duplicate(planned(one, ("f", {"to": "Rome"})), [planned(two, ("f", {"to": "Oslo"}))]) is None
    assert near_duplicate(planned(one, ("f", {"to": "Rome"})), [planned(one, ("f", {"to": "x"}))]) is not None


@pytest.mark.parametrize(
    "plan",
    [[("f", {"city": "oslo"})], [("f", {"city": "Oslo"}), ("g", {})], [("f", {"city": "Oslo, Norway"})], []],
)
def test_another_plan_for_the_same_words_is_no_other_task(plan: list[tuple[str, dict[str, Any]]]) -> None:
    known = planned("What is the weather in Oslo on Monday?", ("f", {"city": "Oslo"}))
    again = planned("Please tell me what the weather in Oslo is on Monday", *plan)
    assert near_duplicate(again, [known]) == known


@pytest.mark.slow
async def test_plans_are_tried_on_the_server() -> None:
    program = StdioServer(command=sys.executable, args=(str(troublesome.__file__),))
    async with connect(troublesome.create_server) as session:
        tools = await session.tools()
    async with PlanProbe(program, tools, call_timeout=8.0) as probe:
        assert await probe.rejection(planned("a", ("add", {"a": 1, "b": 2}))) is None
        refused = await probe.rejection(planned("a", ("refuse", {})))
        assert refused is not None and "there is no such place" in refused.detail
        assert (
            await probe.rejection(planned("a", ("write", {"path": "x", "text": "y"}), ("refuse", {}))) is None
        )
        late = await probe.rejection(planned("a", ("hang", {})))
        assert late is not None and "within 8 s" in late.detail
        killed = await probe.rejection(planned("a", ("die", {})))
        assert killed is not None and killed.reason == "failed_call"
        assert await probe.rejection(planned("a", ("add", {"a": 1, "b": 2}))) is None  # started again


def test_the_chosen_ones_are_spread() -> None:
    many = [planned(f"count {n}", ("count", {"n": n})) for n in range(8)]
    few = [planned(f"add {n}", ("add", {"a": n}), difficulty=4) for n in range(2)]
    chosen = select_spread([*many, *few], 4)
    assert tool_counts(chosen, TOOLS) == {"add": 2, "count": 2, "write": 0, "unmarked": 0, "far": 0}


def test_no_plan_is_on_both_sides() -> None:
    pairs = [planned(f"{word} {n}", ("count", {"n": n})) for n in range(10) for word in ("first", "second")]
    alone = [planned(f"alone {n}") for n in range(4)]
    train, test = split_apart([*pairs, *alone], 6, seed=1)
    assert len(test) == 6 and len(train) + len(test) == 24
    assert not {one.plan_key for one in train if one.plan} & {one.plan_key for one in test if one.plan}
    assert (
        split_apart([*pairs, *alone], 6, seed=1) == (train, test) != split_apart([*pairs, *alone], 6, seed=2)
    )
    with pytest.raises(ConfigurationError, match="cannot be split"):
        split_apart([planned("a", ("add", {"a": 1})), planned("b", ("add", {"a": 1}))], 1)
    train, test = split_apart([planned("a"), planned("b")], 5)
    assert len(train) == len(test) == 1


def test_both_sides_are_of_one_kind() -> None:
    """Though some tools have plans that several scenarios share, which cannot be parted."""
    add = [planned(f"{word} {n}", ("add", {"a": n})) for n in range(16) for word in ("one", "two", "three")]
    count = [planned(f"count {n}", ("count", {"n": n})) for n in range(24)]
    both = [planned(f"both {n}", ("count", {"n": n}), ("add", {"a": n})) for n in range(24)]
    train, test = split_apart([*count, *add, *both], 24)
    assert len(train) == 72 and len(test) == 24
    kinds = ({"add"}, {"count"}, {"add", "count"})
    assert [sum(set(one.tools) == kind for one in test) for kind in kinds] == [12, 6, 6]


def good(n: int) -> dict[str, Any]:
    plan = [{"tool": "add", "arguments": {"a": n, "b": 1}}] if n % 2 else [{"tool": "count", "arguments": {}}]
    task = f"What is {n} and one?" if n % 2 else f"Count up to {n}, and say how it went."
    return {"task": task, "difficulty": 1 + n % 5, "plan": plan}


BAD = [
    {"task": "Multiply 3 by 4.", "difficulty": 1, "plan": [{"tool": "multiply", "arguments": {}}]},
    {
        "task": "Add Monday to 3.",
        "difficulty": 1,
        "plan": [{"tool": "add", "arguments": {"a": "Monday", "b": 3}}],
    },
    {"task": "Go to Atlantis.", "difficulty": 2, "plan": [{"tool": "refuse", "arguments": {}}]},
    {"task": "Write down what 7 is.", "difficulty": 2, "plan": [{"tool": "write", "arguments": {}}]},
    {"task": "what is 1 and one", "difficulty": 2, "plan": [{"tool": "add", "arguments": {"a": 1, "b": 1}}]},
]


async def checked(server: LlmServer, train: int, test: int) -> ScenarioSet:
    llm = resolve_llm("writer", base_url=server.base_url, api_key=server.key)
    async with connect(troublesome.create_server) as session:
        tools = await session.tools()
    async with PlanProbe(troublesome.create_server, tools) as probe:
        return await generate_checked(
            probe, Channel(llm), num_train=train, num_test=test, checks=ScenarioChecks(tools=tools)
        )


async def test_generated_until_enough_pass(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "art_extensions.scenarios")
    stock = [good(1), *BAD, *(good(n) for n in range(2, 40))]
    with LlmServer(ScriptedGenerator(scenarios=stock)) as server:
        made = await checked(server, 8, 4)
    assert len(made.train) == 8 and len(made.test) == 4 and made.unplanned == 0
    assert made.rejections == {
        **{"unknown_tool": 1, "bad_arguments": 1, "failed_call": 1, "writes": 1, "near_duplicate": 1}
    }
    said = [line for line in caplog.messages if "passed their checks" in line]
    counts = [tuple(map(int, re.findall(r"\d+", line))) for line in said]
    assert len(counts) == 2 and all(passed <= tried for passed, tried, _ in counts)
    assert [tried - passed for passed, tried, _ in counts][-1] == 5 and {one[2] for one in counts} == {12}
    assert made.tools["add"] and made.tools["count"]
    assert ScenarioSet.from_dict(made.to_dict()) == made
    prompts = [body["messages"][0]["content"] for body in server.requests]
    assert '"name": "write"' not in prompts[0]  # what may not be called is not written about
    assert len(prompts) == 2 and "No scenario has needed these tools so far" in prompts[1]


@pytest.mark.slow
async def test_too_few_say_why() -> None:
    with (
        LlmServer(ScriptedGenerator(scenarios=[good(1), good(3), *BAD])) as server,
        pytest.raises(LlmAnswerError, match=r"2 of 12 scenarios passed .*unknown_tool.* Ask for fewer"),
    ):
        await checked(server, 8, 4)


async def test_a_server_that_only_writes() -> None:
    channel = Channel(resolve_llm(lambda messages: {"scenarios": []}))
    checks = ScenarioChecks(tools=[tool for tool in TOOLS if tool.read_only is not True])
    with pytest.raises(ConfigurationError, match=r"write, unmarked.*--read-only.*--allow-write"):
        async with PlanProbe(None, []) as probe:
            await generate_checked(probe, channel, num_train=1, num_test=1, checks=checks)


async def test_difficulty_is_the_base_models_pass_rate() -> None:
    async def attempt(scenario: PlannedScenario, number: int) -> Trajectory:
        done = number < int(scenario.task)
        return Trajectory(metrics={"success": done, "tool_errors": 0}, metadata={"n": number})

    scenarios = [planned(str(n)) for n in (0, 1, 4)]
    measured = await measure_difficulty(scenarios, attempt, attempts=4)
    assert [one.pass_rate for one in measured] == [0.0, 0.25, 1.0]
    assert learnable_first(measured, least=1) == measured[:2]
    assert learnable_first(measured, least=3) == measured

    async def truth(trajectory: Trajectory) -> float:
        return 0.5

    assert [one.pass_rate for one in await measure_difficulty(scenarios, attempt, measure=truth)] == [0.5] * 3

    async def gone(scenario: PlannedScenario, number: int) -> Trajectory:
        raise McpError("the server is gone")

    with pytest.raises(McpError, match="the server is gone"):
        await measure_difficulty(scenarios, gone)
    with pytest.raises(ConfigurationError, match="attempts=0"):
        await measure_difficulty(scenarios, attempt, attempts=0)


def test_a_finish_with_a_failed_call_is_not_clean() -> None:
    assert clean_finish(Trajectory(metrics={"success": True, "tool_errors": 0})) == 1.0
    assert clean_finish(Trajectory(metrics={"success": True, "tool_errors": 1})) == 0.0
    assert clean_finish(Trajectory(metrics={"success": False})) == 0.0


def test_scenarios_in_any_form() -> None:
    assert as_planned("a") == as_planned({"task": "a"}) == PlannedScenario("a", 1)
    whole = planned("a", ("add", {"a": 1}), difficulty=3).measured(0.5)
    assert as_planned(whole.to_dict()) == whole and whole.tools == {"add"}
    with pytest.raises(ConfigurationError, match="a scenario has a task"):
        as_planned({"difficulty": 1})
    with pytest.raises(ConfigurationError, match="a planned call is"):
        as_planned({"task": "a", "plan": [{"arguments": {}}]})
