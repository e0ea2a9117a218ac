"""OpenAI's Responses API: the server keeps the conversation, each turn sends what is new."""

from __future__ import annotations

import json

from inbox import MODEL, QUESTION, SYSTEM, TEMPERATURE, TOOLS, TURNS, call, tell
from openai import OpenAI

FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]


def main() -> str | None:
    client = OpenAI()
    news: list = [{"role": "user", "content": QUESTION}]
    before = None
    for _ in range(TURNS):
        reply = client.responses.create(
            model=MODEL,
            instructions=SYSTEM,
            input=news,
            tools=FLAT,
            temperature=TEMPERATURE,
            max_output_tokens=48,
            previous_response_id=before,
        )
        before, news = reply.id, []
        for item in reply.output:
            if item.type != "function_call":
                continue
            arguments = json.loads(item.arguments)
            if item.name == "answer":
                return arguments["text"]
            output = call(item.name, arguments)
            news.append({"type": "function_call_output", "call_id": item.call_id, "output": output})
    return None


tell(main())
