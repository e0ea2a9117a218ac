"""The OpenAI Agents SDK, as it comes: it speaks the Responses API."""

from __future__ import annotations

from agents import Agent, ModelSettings, Runner, StopAtTools, function_tool, set_tracing_disabled
from inbox import MODEL, QUESTION, SYSTEM, TEMPERATURE, TURNS, read, search, tell


@function_tool
def answer(text: str) -> str:
    """Give the answer to the question; this ends the conversation."""
    return text


set_tracing_disabled(True)
agent = Agent(
    name="mail",
    instructions=SYSTEM,
    model=MODEL,
    model_settings=ModelSettings(temperature=TEMPERATURE, max_tokens=48),
    tools=[function_tool(search), function_tool(read), answer],
    tool_use_behavior=StopAtTools(stop_at_tool_names=["answer"]),
)
tell(str(Runner.run_sync(agent, QUESTION, max_turns=TURNS).final_output))
