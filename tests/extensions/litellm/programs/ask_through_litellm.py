"""Asks a judge through litellm: run where litellm is installed, with the address and key as arguments."""

from __future__ import annotations

import asyncio
import json
import sys

from art.errors import ARTError
from art.rewards.llm import Budget, Channel, Request, resolve_llm


async def main(base_url: str, key: str) -> dict[str, object]:
    params = {"temperature": 0.5, "num_retries": 5, "timeout": 20}
    llm = resolve_llm("litellm/openai/gpt-4.1-mini", base_url=base_url, api_key=key, params=params)
    channel = Channel(llm, budget=Budget(usd=1.0), first_wait=0.01)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    requests = [
        Request(messages=({"role": "user", "content": f"hello {n}"},), schema=schema, max_tokens=9)
        for n in range(3)
    ]
    # At once: two of them ask while the first loads the library.
    answers = await asyncio.gather(*(channel.ask_json(one, lambda value: value["a"]) for one in requests))
    try:
        await Channel(resolve_llm("litellm/openai/x", base_url=base_url, api_key="wrong")).ask(requests[0])
    except ARTError as error:
        refused = type(error).__name__
    return {
        "answer": answers,
        "retries": channel.totals.retries,
        "tokens": channel.totals.prompt_tokens,
        "usd": channel.totals.usd,
        "refused": refused,
    }


sys.stdout.write("\n" + json.dumps(asyncio.run(main(*sys.argv[1:]))) + "\n")
