"""LiteLLM, with the provider prefix that its users write."""

from __future__ import annotations

import json

import litellm
from inbox import MODEL, QUESTION, SYSTEM, TEMPERATURE, TOOLS, TURNS, call, tell


def main() -> str | None:
    messages: list = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    for _ in range(TURNS):
        reply = litellm.completion(
            model=f"openai/{MODEL}", messages=messages, tools=TOOLS, temperature=TEMPERATURE, max_tokens=48
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
