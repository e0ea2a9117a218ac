"""Anthropic's SDK, every second turn streamed."""

from __future__ import annotations

from anthropic import Anthropic
from inbox import MODEL, QUESTION, SYSTEM, TEMPERATURE, TOOLS, TURNS, call, tell

OURS = [
    {
        "name": tool["function"]["name"],
        "description": tool["function"]["description"],
        "input_schema": tool["function"]["parameters"],
    }
    for tool in TOOLS
]


def main() -> str | None:
    client = Anthropic()
    messages: list = [{"role": "user", "content": QUESTION}]
    for turn in range(TURNS):
        asked = {
            "model": MODEL,
            "system": SYSTEM,
            "messages": messages,
            "tools": OURS,
            "max_tokens": 48,
            "extra_body": {"temperature": TEMPERATURE},
        }
        if turn % 2:
            with client.messages.stream(**asked) as stream:
                reply = stream.get_final_message()
        else:
            reply = client.messages.create(**asked)
        messages.append({"role": "assistant", "content": reply.content})
        results = []
        for block in reply.content:
            if block.type != "tool_use":
                continue
            if block.name == "answer":
                return block.input["text"]
            said = call(block.name, block.input)
            results.append({"type": "tool_result", "tool_use_id": block.id, "content": said})
        if not results:
            return None
        messages.append({"role": "user", "content": results})
    return None


tell(main())
