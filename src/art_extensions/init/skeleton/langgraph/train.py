"""Train the model inside a LangGraph agent: it searches an inbox, reads a mail and answers the question."""

import argparse

from inbox import SYSTEM_PROMPT, read_mail, scenarios, search_mails
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

import art
from art.langgraph import init_chat_model, wrap_rollout


@tool
def search(keyword: str) -> str:
    """List up to five mails whose subject contains every word of the keyword."""
    return search_mails(keyword)


@tool
def read(id: str) -> str:
    """Read the mail with this id."""
    return read_mail(id)


@tool
def answer(text: str) -> str:
    """Give the answer to the question; this ends the conversation."""
    return text


chat = init_chat_model(max_tokens=48).bind_tools([search, read, answer])


async def think(state: MessagesState) -> dict:
    return {"messages": [await chat.ainvoke(state["messages"])]}


builder = StateGraph(MessagesState)
builder.add_node("think", think)
builder.add_node("tools", ToolNode([search, read, answer]))
builder.add_edge(START, "think")
builder.add_conditional_edges("think", tools_condition)
builder.add_conditional_edges(
    "tools", lambda state: END if state["messages"][-1].name == "answer" else "think", ["think", END]
)
graph = builder.compile()


async def play(project: str, role: str, name: str) -> art.Trajectory:
    """One run of the graph; its reward is 1 for the right answer. ART records the messages."""
    asked = [("system", SYSTEM_PROMPT), ("user", f"Who is the {role} of {project}?")]
    state = await graph.ainvoke({"messages": asked}, {"recursion_limit": 25})
    return art.Trajectory(reward=float(state["messages"][-1].content == name))


async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(name="agent-001", project="__PROJECT__", base_model=options.base_model)
    rollout = wrap_rollout(model, play)
    async with art.LocalBackend() as backend:
        await model.register(backend)
        for step in range(await model.get_step(), options.steps):  # a stopped run continues here
            groups = await art.gather_trajectory_groups(
                (art.TrajectoryGroup(rollout(*mail) for _ in range(8)) for mail in scenarios(step)),
                pbar_desc=f"step {step + 1}",
                max_exceptions=0.1,
            )
            await model.train(groups, config=art.TrainConfig(learning_rate=options.learning_rate))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-model", default="__BASE_MODEL__")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=float("__LEARNING_RATE__"))
    art.run(main(parser.parse_args()))  # as asyncio.run; Ctrl-C ends it in one line
