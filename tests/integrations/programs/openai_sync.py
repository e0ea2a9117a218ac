"""OpenAI's own client, one call after the other."""

from __future__ import annotations

import json

from inbox import MODEL, QUESTION, SYSTEM, TEMPERATURE, TOOLS, TURNS, call, tell
from openai import OpenAI


def main() -> str | None:
    client = OpenAI()
    messages: list = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    for _ in range(TURNS):
        reply = client.chat.completions.create(
            model=MODEL, messages=messages, tools=TOOLS, temperature=TEMPERATURE, max_tokens=48
        )
        message = reply.choices[0].message
        messages.append(message)
        for one in message.tool_calls or ():
            arguments = json.loads(one.function.arguments)
            if one.function.name == "answer":
                return arguments["text"]
            messages.append(
                {"role": "tool", "tool_call_id": one.id, "content": call(one.function.name, arguments)}
            )
    return None


tell(main())
