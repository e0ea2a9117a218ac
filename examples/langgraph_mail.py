"""Train a LangGraph agent with three tools: it finds a name in an inbox of 80 mails."""

from __future__ import annotations

import sys
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

import art
from art.langgraph import init_chat_model, wrap_rollout
from art.local import LocalBackend
from art.tasks import mail


@tool
def search(keyword: str, config: RunnableConfig) -> str:
    """List up to five mails whose subject contains every word of the keyword."""
    return mail.search(config["configurable"]["inbox"], keyword)


@tool
def read(id: str, config: RunnableConfig) -> str:
    """Read the mail with this id."""
    return mail.read(config["configurable"]["inbox"], id)


@tool
def answer(text: str) -> str:
    """Give the answer to the question; this ends the conversation."""
    return text


TOOLS = [search, read, answer]
chat = init_chat_model(max_tokens=48).bind_tools(TOOLS)  # the model of the current rollout


async def think(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await chat.ainvoke(state["messages"])]}


def after_tools(state: MessagesState) -> str:
    return END if state["messages"][-1].name == "answer" else "think"


builder = StateGraph(MessagesState)
builder.add_node("think", think)
builder.add_node("tools", ToolNode(TOOLS))
builder.add_edge(START, "think")
builder.add_conditional_edges("think", tools_condition)
builder.add_conditional_edges("tools", after_tools)
graph = builder.compile()


async def run_agent(scenario: mail.MailScenario) -> art.Trajectory:
    """One rollout: the graph runs, and the answer decides the reward. The messages are recorded."""
    question = {"messages": [("system", mail.SYSTEM_PROMPT), ("user", scenario.question)]}
    config = {"configurable": {"inbox": scenario.inbox}, "recursion_limit": 12}
    try:
        last = (await graph.ainvoke(question, config=config))["messages"][-1]
    except GraphRecursionError:
        return art.Trajectory(reward=0.0, metrics={"right": False})
    if last.type != "tool" or last.name != "answer":
        return art.Trajectory(reward=-1.0, metrics={"right": False})  # it stopped without an answer
    right = last.content.strip().lower() == scenario.wanted.name
    return art.Trajectory(reward=float(right), metrics={"right": right})


async def main(steps: int = 15, groups: int = 8, group_size: int = 8) -> None:
    model = art.TrainableModel(name="mail-agent", project="langgraph", base_model="art/nano-tools")
    async with LocalBackend() as backend:
        await model.register(backend)
        rollout = wrap_rollout(model, run_agent)
        for step in range(await model.get_step(), steps):
            scenarios = [mail.scenario(0, step * groups + number) for number in range(groups)]
            batch = await art.gather_trajectory_groups(
                art.TrajectoryGroup(rollout(scenario) for _ in range(group_size)) for scenario in scenarios
            )
            result = await model.train(batch, config=art.TrainConfig(learning_rate=2e-3))
            right = [one.metrics["right"] for group in batch for one in group]
            print(f"step {result.step}: {sum(right) / len(right):.0%} of {len(right)} answers right")


if __name__ == "__main__":
    art.run(main(*map(int, sys.argv[1:])))
