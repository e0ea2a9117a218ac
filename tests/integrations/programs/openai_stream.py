"""OpenAI's streaming helper: replies put together from their events, usage at the end."""

from __future__ import annotations

import json

from inbox import MODEL, QUESTION, SYSTEM, TEMPERATURE, TOOLS, TURNS, call, tell
from openai import OpenAI


def main() -> str | None:
    client = OpenAI()
    messages: list = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    for _ in range(TURNS):
        with client.chat.completions.stream(
            model=MODEL,
            messages=messages,
            tools=TOOLS,
            temperature=TEMPERATURE,
            max_tokens=48,
            stream_options={"include_usage": True},
        ) as stream:
            for _ in stream:
                pass
            reply = stream.get_final_completion()
        assert reply.usage is not None and reply.usage.completion_tokens > 0
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
