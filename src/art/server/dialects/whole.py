"""All choices of a request sampled to their ends, and committed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from art.server.dialects.chat_prepared import Prepared
from art.server.dialects.chat_reply import Completion, finish_reason
from art.server.dialects.chat_sampling import Sampler, new_completion


@dataclass(frozen=True, slots=True)
class Done:
    """One committed choice."""

    completion: Completion
    message: dict[str, Any]
    """The assistant's message as the chat API spells it."""
    finish: str
    """`stop`, `length` or `tool_calls`."""


async def whole(sampler: Sampler, prepared: Prepared) -> list[Done]:
    """Sample every choice; return when all are in the ledger. Raises: what the engine raises."""
    completions = [new_completion() for _ in range(prepared.request.n)]
    if len(completions) == 1:
        await _run(sampler, prepared, 0, completions[0])
    else:
        await together([_run(sampler, prepared, n, one) for n, one in enumerate(completions)])
    done = [(one, prepared.message(one)) for one in completions]
    await sampler.keep(prepared, done)
    return [Done(one, message, finish_reason(one, message)) for one, message in done]


async def together(runs: list[Any]) -> list[Any]:
    """All of them, in order; the first failure cancels the rest."""
    tasks = [asyncio.ensure_future(run) for run in runs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run(sampler: Sampler, prepared: Prepared, index: int, completion: Completion) -> None:
    async for _ in sampler.deltas(prepared, index, completion):
        pass
