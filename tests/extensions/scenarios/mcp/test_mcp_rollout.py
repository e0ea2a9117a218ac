from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from agent_endpoint import DONE, Agent, call, script

import art
from art.errors import ConfigurationError, McpTimeoutError
from art.process.root_logger import preserve_root_logger
from art.types import completion_call
from art_extensions.scenarios.mcp import GeneratedScenario, StdioServer, complete_task_tool, rollout
from art_extensions.scenarios.mcp.rollout import OfferedTools
from art_extensions.scenarios.mcp.types import MCPTool
from core_speed import CoreSpeed
from troublesome import MCPServer, create_server
from waiting import gone, until

TASK = GeneratedScenario(task="Add 2 and 3.", difficulty=2)
ADD = {"tool_calls": [call("add", {"a": 2, "b": 3})]}


def tool_messages(trajectory: art.Trajectory) -> list[str]:
    return [message["content"] for message in trajectory.messages() if message["role"] == "tool"]  # type: ignore[misc]


@pytest.mark.slow
async def test_an_attempt_is_a_trajectory_with_what_the_model_saw(agent: Agent) -> None:
    agent.policy = script(ADD, DONE)
    trajectory = await rollout(agent.model(), TASK, create_server, max_tokens=99, temperature=0.5, seed=7)
    roles = [message["role"] for message in trajectory.messages()]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    assert "at most 10 turns" in trajectory.messages()[0]["content"]  # type: ignore[operator, typeddict-item]
    assert trajectory.messages()[1]["content"] == "Add 2 and 3."
    assert tool_messages(trajectory) == ["5"]
    outcome = {name: trajectory.metrics[name] for name in ("task_completed", "success", "ran_out_of_turns")}
    assert outcome == {"task_completed": True, "success": True, "ran_out_of_turns": False}
    assert (trajectory.metrics["num_turns"], trajectory.metrics["tool_errors"]) == (2, 0)
    assert trajectory.metadata == {"scenario": TASK.task, "difficulty": 2, "server": "create_server"}

    first, second = agent.asked
    assert first["tools"] == second["tools"] == trajectory.tools
    assert first["messages"] == trajectory.messages()[:2]
    assert (first["max_tokens"], first["temperature"]) == (99, 0.5)
    assert first["seed"] != second["seed"]
    await rollout(agent.model(), TASK, create_server, seed=7)
    assert [body["seed"] for body in agent.asked[2:]] == [first["seed"], second["seed"]]


async def test_only_what_may_be_called_is_offered_under_names_that_endpoints_take(agent: Agent) -> None:
    agent.policy = script({"tool_calls": [call("notes_pid_of")]}, DONE)
    trajectory = await rollout(agent.model(), "Who?", create_server, system_prompt="")
    assert trajectory.metadata == {"scenario": "Who?", "server": "create_server"}
    assert trajectory.messages()[0]["role"] == "user", "an empty system prompt is none"
    names = [tool["function"]["name"] for tool in agent.asked[0]["tools"]]
    assert "notes_pid_of" in names and names[-1] == "complete_task"
    assert not {"write", "unmarked"} & set(names)
    assert agent.asked[0]["tools"][-1] == complete_task_tool.to_tool_schema()
    assert tool_messages(trajectory)[0].isdigit()
    await rollout(agent.model(), "Who?", create_server, allow_writes=["unmarked"])
    assert "unmarked" in {tool["function"]["name"] for tool in agent.asked[-1]["tools"]}


async def test_a_tool_that_writes_is_not_called_even_if_the_model_asks_for_it(
    agent: Agent, tmp_path: Any
) -> None:
    path = tmp_path / "x"
    agent.policy = script({"tool_calls": [call("write", {"path": str(path), "text": "mine"})]}, DONE)
    trajectory = await rollout(agent.model(), TASK, create_server)
    assert "there is no tool 'write'; the tools are: add," in tool_messages(trajectory)[0]
    assert trajectory.metrics["tool_errors"] == 1 and not path.exists()
    trajectory = await rollout(agent.model(), TASK, create_server, allow_writes=["write"])
    assert tool_messages(trajectory) == ["written"] and path.read_text() == "mine"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (call("add", "{a: 2"), "the arguments of 'add' are no valid JSON"),
        (call("add", "[2, 3]"), "the arguments of 'add' are no JSON object"),
        (call("add", {"a": "two", "b": 3}), "Input should be a valid integer"),
        (call("subtract", {}), "there is no tool 'subtract'; the tools are: add,"),
        (call("refuse"), "there is no such place"),
        (call("hang"), "'hang' did not answer within 0.2 s"),
        (call("complete_task", "done!"), "the arguments of 'complete_task' are no valid JSON"),
    ],
)
async def test_what_goes_wrong_with_a_call_is_told_to_the_model_which_goes_on(
    agent: Agent, wrong: dict[str, Any], told: str
) -> None:
    agent.policy = script({"tool_calls": [wrong]}, DONE)
    patience = 0.2 if wrong["function"]["name"] == "hang" else 60.0
    trajectory = await rollout(agent.model(), TASK, create_server, call_timeout=patience)
    assert told in tool_messages(trajectory)[0]
    assert (trajectory.metrics["tool_errors"], trajectory.metrics["task_completed"]) == (1, True)
    assert agent.asked[1]["messages"][-1]["tool_call_id"] == "c0"


async def test_several_calls_of_a_turn_are_answered_in_order_up_to_the_end(agent: Agent) -> None:
    last = call("complete_task", {"summary": " "}, id="end")
    agent.policy = script({"tool_calls": [*(call("count", id=f"c{n}") for n in range(3)), last]})
    trajectory = await rollout(agent.model(), TASK, create_server)
    assert tool_messages(trajectory) == ["call 1", "call 2", "call 3"]
    assert (trajectory.metrics["num_turns"], trajectory.metrics["task_completed"]) == (1, True)
    assert trajectory.metrics["success"] is False, "it did not say what it did"
    noted = completion_call(trajectory.messages_and_choices[2])
    assert list(noted["tools"]) == ["c0", "c1", "c2"]
    tools = [moment for pair in noted["tools"].values() for moment in pair]
    moments = [noted["started_at"], noted["ended_at"], *tools]
    assert moments == sorted(moments)


async def test_an_attempt_ends_without_turns_or_without_calls(agent: Agent) -> None:
    agent.policy = script(ADD)
    trajectory = await rollout(agent.model(), TASK, create_server, max_turns=3)
    assert trajectory.metrics["ran_out_of_turns"] is True and trajectory.metrics["num_turns"] == 3
    agent.policy = script({"content": "It is 5."})
    trajectory = await rollout(agent.model(), TASK, create_server)
    assert trajectory.metrics["ran_out_of_turns"] is False and trajectory.metrics["num_turns"] == 1
    assert trajectory.metrics["task_completed"] is False


async def test_long_answers_of_tools_are_cut(agent: Agent) -> None:
    agent.policy = script({"tool_calls": [call("flood", {"characters": 1_000_000})]}, DONE)
    trajectory = await rollout(agent.model(), TASK, create_server, result_limit=500)
    (text,) = tool_messages(trajectory)
    assert len(text) < 600 and "999500 characters are left out" in text


@pytest.mark.slow
async def test_rollouts_side_by_side_have_sessions_of_their_own_in_a_gather(agent: Agent) -> None:
    def policy(messages: list[dict[str, Any]]) -> dict[str, Any]:
        wanted = int(messages[-1]["content"]) if messages[-1]["role"] == "user" else 0
        said = sum(message["role"] == "assistant" for message in messages)
        calls = [call("count", id=f"c{n}") for n in range(wanted)]
        return {"tool_calls": calls} if said == 0 else DONE

    agent.policy = policy
    groups = await art.gather_trajectory_groups(
        (
            art.TrajectoryGroup(rollout(agent.model(), str(n), create_server) for _ in range(2))
            for n in range(1, 4)
        ),
        pbar_desc=None,
    )
    for n, group in enumerate(groups, 1):
        for trajectory in group.trajectories:
            assert tool_messages(trajectory) == [f"call {k}" for k in range(1, n + 1)]


@pytest.mark.slow
async def test_a_cancelled_rollout_leaves_no_process(
    agent: Agent, babbling: Callable[[str], StdioServer]
) -> None:
    heard: list[str] = []
    hangs = threading.Event()

    def policy(messages: list[dict[str, Any]]) -> dict[str, Any]:
        heard.append(messages[-1]["content"])
        if len(heard) == 2:
            hangs.set()
        return {"tool_calls": [call("go")]}

    agent.policy = policy
    attempt = asyncio.create_task(rollout(agent.model(), TASK, babbling("hangs the second time")))
    assert await asyncio.to_thread(hangs.wait, 60)
    await asyncio.sleep(0.1)  # the tool is called
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    await until(lambda: gone(int(heard[1])))


async def test_the_deadline_of_an_attempt_is_an_error_and_no_reward(agent: Agent) -> None:
    agent.policy = script({"tool_calls": [call("hang")]})
    with pytest.raises(McpTimeoutError, match=r"'Add 2 and 3\.' took longer than 0\.5 s"):
        await rollout(agent.model(), TASK, create_server, deadline=0.5)


@pytest.mark.slow
async def test_a_server_that_dies_fails_the_attempt(
    agent: Agent, babbling: Callable[[str], StdioServer]
) -> None:
    agent.policy = script({"tool_calls": [call("go")]})
    group = await art.gather_trajectory_groups(
        [art.TrajectoryGroup([rollout(agent.model(), TASK, babbling("dies"))])],
        pbar_desc=None,
        max_exceptions=1,
    )
    (failed,) = group[0].exceptions
    assert not group[0].trajectories
    assert "McpError" in failed.type and "the disk is on fire" in failed.message


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_turns": 0}, "max_turns=0"),
        ({"deadline": -1}, "deadline=-1"),
        ({"result_limit": 0}, "result_limit"),
    ],
)
async def test_limits_that_leave_nothing_are_refused(options: dict[str, Any], said: str) -> None:
    model = art.Model(name="m", project="p")
    with pytest.raises(ConfigurationError, match=said):
        await rollout(model, TASK, create_server, **options)


async def test_a_server_without_a_tool_to_offer_is_refused_with_the_ways_out() -> None:
    def make() -> MCPServer:
        with preserve_root_logger():
            server = MCPServer("silent")

        @server.tool()
        def look() -> str:
            return "seen"

        return server

    with pytest.raises(ConfigurationError, match=r"'make' .*read_only=.*allow_writes="):
        await rollout(art.Model(name="m", project="p"), TASK, make)


async def test_names_of_tools_stay_apart(agent: Agent) -> None:
    def make() -> MCPServer:
        with preserve_root_logger():
            server = MCPServer("names")
        for name in ("a.b", "a/b", "complete_task", "x" * 70, "x" * 70 + "y"):
            server.add_tool(lambda name=name: name, name=name, structured_output=False)
        return server

    def policy(messages: list[dict[str, Any]]) -> dict[str, Any]:
        if messages[-1]["role"] == "tool":
            return DONE
        names = [tool["function"]["name"] for tool in agent.asked[-1]["tools"]]
        return {"tool_calls": [call(name, {"name": "?"}) for name in names[:-1]]}

    agent.policy = policy
    trajectory = await rollout(agent.model(), TASK, make, allow_writes=True)
    names = [tool["function"]["name"] for tool in agent.asked[0]["tools"]]
    assert names[:3] == ["a_b", "a_b_2", "complete_task_2"] and names[-1] == "complete_task"
    assert len(set(names)) == 6 and all(len(name) <= 64 for name in names)
    assert trajectory.metrics["tool_errors"] == 0
    assert json.dumps(trajectory.for_logging()["tools"]), "it can be stored"


def test_very_many_tools_have_names_in_a_time_that_grows_with_their_number() -> None:
    names = [f"tool/{n}" for n in range(10_000)] + ["same/" + "x" * 70 + str(n) for n in range(10_000)]
    tools = [MCPTool(name=name, description="", parameters={"type": "object"}) for name in names]
    speed, begun = CoreSpeed(), time.thread_time()
    offered = OfferedTools(tools)
    spent = time.thread_time() - begun
    assert spent < speed.allowed(2.0), "comparing each with each takes minutes"
    assert list(offered.tools_by_name.values()) == names and len(set(offered.names)) == 20_001
    assert all(len(name) <= 64 for name in offered.names)
    assert offered.names[10_000] == "same_" + "x" * 59 and offered.names[10_001].endswith("x_2")
