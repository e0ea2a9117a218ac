"""Questions of BFCL with a scripted model, run where the library is installed: prints JSON.

python bfcl_questions.py BASE_URL KEY
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import art
from art.environments.adapters.registry import find_environment
from art.errors import ConfigurationError

CHECKED = ("simple_python", "multiple", "parallel", "parallel_multiple")
TURNS = "multi_turn_base"
OTHERS = ("simple_java", "irrelevance", "live_relevance")
REPLIES = ("right", "none", "prose", "value", "name", "twice", "broken")
QUESTIONS = 4


def record(one: art.Trajectory) -> dict[str, Any]:
    return {"reward": one.reward, "metrics": one.metrics, "metadata": one.metadata, "tools": one.tools,
            "messages": [dict(message) for message in one.messages()]}  # fmt: skip


def refusal(name: str, split: str = "val", **options: Any) -> str:
    try:
        find_environment(name, **options).scenarios(split)
    except ConfigurationError as error:
        return str(error)
    return "not refused"


async def main(base_url: str, key: str) -> None:
    found: dict[str, Any] = {}
    for category in (*CHECKED, *OTHERS):
        environment = find_environment(f"bfcl:{category}", val=QUESTIONS)
        scenarios = environment.scenarios("val")
        for reply in REPLIES if category in CHECKED else REPLIES[:3]:
            # The script is told by the model's name which reply is wanted.
            model = art.Model(name=reply, project="p", inference_model_name=f"{category}/{reply}",
                              inference_base_url=base_url, inference_api_key=key)  # fmt: skip
            rollouts = [environment.rollout(model, one, seed=1, max_tokens=64) for one in scenarios]
            played = await asyncio.gather(*rollouts)
            found[f"{category}/{reply}"] = [record(one) for one in played]
    environment = find_environment(f"bfcl:{TURNS}", val=3)
    for reply in ("right", "right again", "none", "name", "broken", "forbidden", "endless"):
        model = art.Model(name="turns", project="p", inference_model_name=f"{TURNS}/{reply}",
                          inference_base_url=base_url, inference_api_key=key)  # fmt: skip
        rollouts = [environment.rollout(model, one, max_tokens=64) for one in environment.scenarios("val")]
        found[f"{TURNS}/{reply}"] = [record(one) for one in await asyncio.gather(*rollouts)]
    worlds = import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils")
    found["worlds"] = [name for name in vars(worlds) if name.startswith("art_")]
    live = find_environment("bfcl:live", val=50)
    found["live"] = {split: [one.id for one in live.scenarios(split)] for split in ("train", "val")}
    found["simple"], found["turns"] = refusal("bfcl:simple"), refusal("bfcl:multi_turn_miss_func")
    found["used up"] = refusal("bfcl:live_relevance", "train")
    package = Path(str(find_spec("bfcl_eval").origin)).parent  # type: ignore[union-attr]
    found["beside"] = sorted({"result", "score", ".file_locks"} & set(os.listdir(package.parent)))
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
