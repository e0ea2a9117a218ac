"""Requests made of the OpenAPI document, until there were so many: `make api-cases CASES=500`, or 10,000.

The server counts them itself. Each round has a server of its own and a seed that is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path

import borrowed  # noqa: F401  it says where the others are
from chat_folder import write_chat_folder
from generated_requests import generated_requests
from tenants_world import run_world

from art.rendering.registry import create_chat_renderer

EXAMPLES = 12
"""Of each operation and phase, in a round."""
ROUND_S = 3600.0


async def main(cases: int, seed: int) -> int:
    """Returns the exit status: 1 where something was found."""
    tried = 0
    while tried < cases:
        with tempfile.TemporaryDirectory(prefix="api-cases-") as folder:
            renderer = create_chat_renderer(write_chat_folder(Path(folder) / "tiny"), name="tiny")
            async with run_world(Path(folder) / "data", renderer) as world:
                told = await generated_requests(
                    world.app, Path(folder), examples=EXAMPLES, seed=seed, within=ROUND_S
                )
        tried += told.requests
        print(
            f"seed {seed}: {told.requests} requests, {told.failures.total()} failures, {tried} in all",
            flush=True,
        )
        if told.status or told.failures:
            print(told.output, *told.failures.items(), sep="\n")
            return 1
        seed += 1
    return 0


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--cases", type=int, default=10_000)
    options.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    asked = options.parse_args()
    sys.exit(asyncio.run(main(asked.cases, asked.seed)))
