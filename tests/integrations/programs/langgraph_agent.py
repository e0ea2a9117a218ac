"""LangGraph's own ReAct agent over langchain's ChatOpenAI."""

from __future__ import annotations

from inbox import MODEL, QUESTION, SYSTEM, TEMPERATURE, TURNS, read, search, tell
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent


@tool(return_direct=True)
def answer(text: str) -> str:
    """Give the answer to the question; this ends the conversation."""
    return text


agent = create_react_agent(
    ChatOpenAI(model=MODEL, temperature=TEMPERATURE, max_tokens=48),
    [tool(search), tool(read), answer],
    prompt=SYSTEM,
)
result = agent.invoke({"messages": [("user", QUESTION)]}, {"recursion_limit": 2 * TURNS + 1})
tell(result["messages"][-1].content)
