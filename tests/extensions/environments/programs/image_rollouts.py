"""Rollouts of environments that show images, where their library is installed: prints JSON.

python image_rollouts.py BASE_URL KEY CASES      CASES: JSON, name of a case -> [environment, options]
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from environment_program import model_of

from art.environments.adapters.registry import find_environment


async def played(base_url: str, key: str, case: str, name: str, options: dict[str, Any]) -> Any:
    environment = find_environment(name, **options)
    model = model_of(case, base_url, key)
    try:
        (scenario, *_) = environment.scenarios("val")
        one = await environment.rollout(model, scenario, max_tokens=20)
        return {"reward": one.reward, "messages": one.messages(), "show": one.metadata["show"]}
    except Exception as error:  # noqa: BLE001  # the test looks at it
        return f"{type(error).__name__}: {error}"
    finally:
        await environment.close()


def main(base_url: str, key: str, cases: str) -> None:
    found = {
        case: asyncio.run(played(base_url, key, case, name, options))
        for case, (name, options) in json.loads(cases).items()
    }
    sys.stdout.write(f"\n{json.dumps(found, default=str)}\n")


main(*sys.argv[1:])
