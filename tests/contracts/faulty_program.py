"""Rollouts in environments with a fault, as JSON: run where their libraries are installed.

python faulty_program.py < ORDER    {"url", "key", "cases": [{"name", "options", "with"}]}

with: fault -> further options, which give the environment this fault.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import art
from art.environments.adapters.registry import find_environment

ALL_S = 120.0
"""No rollout may take longer, whatever its environment does."""


async def outcome(model: art.TrainableModel, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a loop of rollouts has of one: its reward, or why there is none."""
    try:
        environment = find_environment(name, **options)
        rollout = environment.rollout(model, environment.scenarios("train")[0], max_tokens=4)
        one = await asyncio.wait_for(rollout, ALL_S)
    except TimeoutError as error:
        own = isinstance(error, art.errors.ARTError)
        return {"error": f"{type(error).__name__}: {error}"} if own else {"late": True}
    except Exception as error:  # noqa: BLE001  # the test looks at it
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    known = art.types.known_reward(one) if not isinstance(one.reward, str) else None
    if known is not None:
        return {"reward": known}
    return {"unscored": art.types.unscored_reason(one)[:500]}


async def main() -> None:
    order = json.load(sys.stdin)
    model = art.TrainableModel(name="address", project="matrix", base_model="art/nano-words")
    await model.register(art.RemoteBackend(order["url"], api_key=order["key"]))
    for module in order.get("modules", ()):
        import_module(module)
    told = []
    for case in order["cases"]:
        found = {}
        for fault, more in case["with"].items():
            print(case["name"], fault, file=sys.stderr, flush=True)
            name = more.pop("name", case["name"])
            found[fault] = await outcome(model, name, {**case["options"], **more})
        told.append(found)
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    logging.disable()
    asyncio.run(main())
