"""smolagents: it writes the calls of the past into the conversation as text."""

from __future__ import annotations

import os

from inbox import MODEL, QUESTION, SYSTEM, TEMPERATURE, read, search, tell
from smolagents import EMPTY_PROMPT_TEMPLATES, LogLevel, OpenAIServerModel, ToolCallingAgent, tool


@tool
def look(keyword: str) -> str:
    """List up to five mails whose subject contains every word of the keyword.

    Args:
        keyword: a project and a role
    """
    return search(keyword)


@tool
def fetch(id: str) -> str:
    """Read the mail with this id.

    Args:
        id: of the mail
    """
    return read(id)


look.name, fetch.name = "search", "read"
agent = ToolCallingAgent(
    tools=[look, fetch],
    model=OpenAIServerModel(
        MODEL,
        api_base=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
        temperature=TEMPERATURE,
        max_tokens=32,
    ),
    prompt_templates={**EMPTY_PROMPT_TEMPLATES, "system_prompt": SYSTEM},
    max_steps=3,
    verbosity_level=LogLevel.OFF,
)
tell(str(agent.run(QUESTION)))
