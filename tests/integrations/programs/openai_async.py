"""OpenAI's asynchronous client, which passes messages on as dictionaries."""

from __future__ import annotations

import asyncio
import json

from inbox import MODEL, QUESTION, SYSTEM, TEMPERATURE, TOOLS, TURNS, call, tell
from openai import AsyncOpenAI


async def main() -> str | None:
    client = AsyncOpenAI()
    messages: list = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    for _ in range(TURNS):
        reply = await client.chat.completions.create(
            model=MODEL, messages=messages, tools=TOOLS, temperature=TEMPERATURE, max_completion_tokens=48
        )
        message = reply.choices[0].message.model_dump(exclude_none=True)
        messages.append({key: message[key] for key in ("role", "content", "tool_calls") if key in message})
        for one in message.get("tool_calls", ()):
            name, arguments = one["function"]["name"], json.loads(one["function"]["arguments"])
            if name == "answer":
                return arguments["text"]
            messages.append({"role": "tool", "tool_call_id": one["id"], "content": call(name, arguments)})
    return None


tell(asyncio.run(main()))
