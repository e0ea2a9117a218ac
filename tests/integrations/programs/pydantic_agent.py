"""pydantic-ai with typed tools; the answer is its output tool."""

from __future__ import annotations

from inbox import MODEL, QUESTION, SYSTEM, TEMPERATURE, read, search, tell
from pydantic_ai import Agent, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel


def answer(text: str) -> str:
    """Give the answer to the question; this ends the conversation."""
    return text


agent = Agent(
    OpenAIChatModel(MODEL),
    system_prompt=SYSTEM,
    tools=[search, read],
    output_type=ToolOutput(answer, name="answer"),
    model_settings={"temperature": TEMPERATURE, "max_tokens": 48},
)
tell(agent.run_sync(QUESTION).output)
