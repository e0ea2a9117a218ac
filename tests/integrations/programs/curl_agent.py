"""Plain curl: each request is a process of its own, the conversation is kept as text."""

from __future__ import annotations

import json
import os
import subprocess

from inbox import MODEL, QUESTION, SYSTEM, TEMPERATURE, TOOLS, TURNS, call, tell


def ask(messages: list) -> dict:
    body = {
        "model": MODEL,
        "messages": messages,
        "tools": TOOLS,
        "temperature": TEMPERATURE,
        "max_tokens": 48,
    }
    # The key goes in through a configuration on standard input: a command line can be read by others.
    configuration = "\n".join(
        [
            f'url = "{os.environ["OPENAI_BASE_URL"]}/chat/completions"',
            f'header = "Authorization: Bearer {os.environ["OPENAI_API_KEY"]}"',
            'header = "Content-Type: application/json"',
            f"data = {json.dumps(json.dumps(body))}",
        ]
    )
    done = subprocess.run(
        ["curl", "--silent", "--show-error", "--fail-with-body", "--max-time", "60", "--config", "-"],
        input=configuration.encode(),
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"curl ended with {done.returncode}: {done.stderr.decode()} {done.stdout.decode()}")
    return json.loads(done.stdout)["choices"][0]["message"]


def main() -> str | None:
    messages: list = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    for _ in range(TURNS):
        message = ask(messages)
        messages.append(message)
        for one in message.get("tool_calls") or ():
            name, arguments = one["function"]["name"], json.loads(one["function"]["arguments"])
            if name == "answer":
                return arguments["text"]
            messages.append({"role": "tool", "tool_call_id": one["id"], "content": call(name, arguments)})
    return None


tell(main())
