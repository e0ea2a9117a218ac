"""Agents of LangGraph are trained: a ReAct agent, a subgraph, structured output. One server, one step."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.tools import tool
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from pydantic import BaseModel, ConfigDict, Field

import art
from art.trajectories import is_choice
from art_extensions.langgraph import init_chat_model, wrap_rollout

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it moved to a package that not everybody has yet
    from langgraph.prebuilt import create_react_agent


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]


class Verdict(BaseModel):
    """How it went."""

    # Else its schema allows any further property, and an untrained model does not end them.
    model_config = ConfigDict(extra="forbid")
    good: bool = Field(description="whether it went well")


@tool
def search(keyword: str) -> str:
    """Search the inbox for a keyword."""
    return f"b1 {keyword} owner"


@tool
def read(id: str) -> str:
    """Read the mail with this id."""
    return "alice is the owner"


def react_agent() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return create_react_agent(init_chat_model(max_tokens=48), [search, read])


def with_subgraph() -> Any:
    """A node that thinks, and a subgraph with a model of its own settings inside the same rollout."""
    thinker, helper = init_chat_model(max_tokens=6), init_chat_model(max_tokens=4, temperature=0.5)

    async def think(state: State) -> dict[str, Any]:
        return {"messages": [await thinker.ainvoke(state["messages"])]}

    def help_out(state: State) -> dict[str, Any]:  # in a thread of LangGraph's
        return {"messages": [helper.invoke([("system", "you help"), *state["messages"]])]}

    inner = StateGraph(State)
    inner.add_node("help", help_out)
    inner.add_edge(START, "help")
    inner.add_edge("help", END)
    outer = StateGraph(State)
    outer.add_node("think", think)
    outer.add_node("inner", inner.compile())
    outer.add_edge(START, "think")
    outer.add_edge("think", "inner")
    outer.add_edge("inner", END)
    return outer.compile()


def histories(trajectory: art.Trajectory) -> list[list[Any]]:
    return [
        [item for item in history.messages_and_choices if is_choice(item)]
        for history in (trajectory, *trajectory.additional_histories)
    ]


@pytest.mark.slow
async def test_agents_of_langgraph_are_trained(tmp_path: Path) -> None:
    model = art.TrainableModel(name="agent", project="flow", base_model="art/nano-tools")
    react, nested = react_agent(), with_subgraph()
    judge = init_chat_model(max_tokens=400)
    by_call = judge.with_structured_output(Verdict, method="function_calling")
    by_schema = judge.with_structured_output(Verdict, method="json_schema")

    async def tools_agent(reward: float) -> art.Trajectory:
        asked = {"messages": [("user", "Who is the owner of atlas?")]}
        try:
            await react.ainvoke(asked, config={"recursion_limit": 5})
        except GraphRecursionError:  # what was said until then is not lost
            return art.Trajectory(reward=reward, metrics={"out_of_steps": 1})
        return art.Trajectory(reward=reward)

    async def subgraph_agent(reward: float) -> art.Trajectory:
        state = await nested.ainvoke({"messages": [("user", "Who is the owner of atlas?")]})
        assert len(state["messages"]) == 3
        return art.Trajectory(reward=reward)

    async def structured_agent(reward: float) -> art.Trajectory:
        for chain in (by_call, by_schema):
            assert isinstance(await chain.ainvoke("did it go well?"), Verdict)
        return art.Trajectory(reward=reward)

    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        groups = await art.gather_trajectory_groups(
            art.TrajectoryGroup(wrap_rollout(model, agent)(reward) for reward in (0.0, 1.0, 3.0))
            for agent in (tools_agent, subgraph_agent, structured_agent)
        )
        result = await backend.train(model, groups, learning_rate=1e-4)
        again = await wrap_rollout(model, subgraph_agent)(0.0)  # the same compiled graph, at the newest step
    assert [len(group) for group in groups] == [3, 3, 3]
    for trajectory in groups[0]:
        assert trajectory.tools and len(histories(trajectory)) == 1 and histories(trajectory)[0]
        kinds = [item["role"] for item in trajectory.messages_and_choices if not is_choice(item)]
        assert kinds[0] == "user" and set(kinds[1:]) <= {"tool"}
    assert [[len(one) for one in histories(t)] for t in groups[1]] == [[1, 1]] * 3
    assert [[len(one) for one in histories(t)] for t in groups[2]] == [[1, 1]] * 3
    sampled = [one for group in groups for t in group for history in histories(t) for one in history]
    assert len({one.sample_id for one in sampled}) == len(sampled)
    assert result.metrics["data/sheet/trained_rollouts"] == 9
    assert result.metrics["data/sheet/trained_tokens"] == sum(one.completion_tokens for one in sampled)
    assert {one.step for one in sampled} == {0}
    assert {one.step for history in histories(again) for one in history} == {1}
