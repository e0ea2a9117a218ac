"""OpenHands' agent with its terminal and its file editor, run where its SDK is installed.

python run_openhands.py MODEL TASK      in the folder that the agent works in; OPENAI_BASE_URL, OPENAI_API_KEY
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.terminal import TerminalTool
from pydantic import SecretStr


def main(model: str, task: str) -> None:
    llm = LLM(
        model=f"openai/{model}",
        base_url=os.environ["OPENAI_BASE_URL"],
        api_key=SecretStr(os.environ["OPENAI_API_KEY"]),
        num_retries=1,
        usage_id="agent",
    )
    agent = Agent(llm=llm, tools=[Tool(name=TerminalTool.name), Tool(name=FileEditorTool.name)])
    conversation = Conversation(agent=agent, workspace=str(Path.cwd()), max_iteration_per_run=8)
    conversation.send_message(task)
    conversation.run()
    conversation.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
