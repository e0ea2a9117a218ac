"""The mail agent as a LangGraph graph: the same tools, the same archive, the same score."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from mail_archive import MailArchive, MailQuestion

import art
from art.langgraph import init_chat_model, wrap_rollout
from art.langgraph.message_utils import convert_langgraph_messages

MOST_TURNS = 6
"""Of the model; each is two nodes of the graph, with its tools."""


@tool
def search(keyword: str, config: RunnableConfig) -> str:
    """List up to five mails that contain every word of the keyword."""
    return config["configurable"]["archive"].search(keyword)


@tool
def read(id: str, config: RunnableConfig) -> str:
    """Read the mail with this id."""
    return config["configurable"]["archive"].read(id)


@tool
def answer(text: str) -> str:
    """Give the answer to the question; this ends the conversation."""
    return text


def build_graph() -> Any:
    """Compiles the graph once; its chat model is the model of the rollout that runs it."""
    tools = [search, read, answer]
    chat = init_chat_model(max_tokens=48).bind_tools(tools)

    async def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await chat.ainvoke(state["messages"])]}

    def after_tools(state: MessagesState) -> str:
        return END if state["messages"][-1].name == "answer" else "think"

    builder = StateGraph(MessagesState)
    builder.add_node("think", think)
    builder.add_node("tools", ToolNode(tools))
    builder.add_edge(START, "think")
    builder.add_conditional_edges("think", tools_condition)
    builder.add_conditional_edges("tools", after_tools)
    return builder.compile()


Score = Callable[..., art.Trajectory]


def rollout_with(model: art.Model, score: Score) -> Callable[[MailQuestion], Awaitable[art.Trajectory]]:
    """Returns a rollout that runs the graph on a question. The messages are recorded."""
    graph = build_graph()

    async def ask(question: MailQuestion) -> art.Trajectory:
        archive = MailArchive(question)
        config = {"configurable": {"archive": archive}, "recursion_limit": 2 * MOST_TURNS}
        trajectory, answer, turns = art.Trajectory(reward=0.0), None, MOST_TURNS
        try:
            messages = (await graph.ainvoke({"messages": question.opening}, config=config))["messages"]
            trajectory.messages_and_choices = convert_langgraph_messages(messages)
            turns = sum(one.type == "ai" for one in messages)
            answer = messages[-1].content if messages[-1].type == "tool" else None
            broken = answer is None
        except GraphRecursionError:  # out of turns
            broken = False
        finally:
            archive.close()
        return score(trajectory, question, answer, broken=broken, turns=turns)

    return wrap_rollout(model, ask)
