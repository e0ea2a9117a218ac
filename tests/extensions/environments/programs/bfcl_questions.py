"""Questions of BFCL with a scripted model, run where the library is installed: prints JSON.

python bfcl_questions.py BASE_URL KEY
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import art
from art.environments.adapters.registry import find_environment
from art.errors import ConfigurationError
from art.process.environment import variable_set

CHECKED = ("simple_python", "multiple", "parallel", "parallel_multiple")
TURNS = "multi_turn_base"
OTHERS = ("simple_java", "irrelevance", "live_relevance")
EVALUATED = ("simple_python", "irrelevance")
REPLIES = ("right", "none", "prose", "value", "name", "twice", "broken")
HUGE = ("power", "digits", "infinite", "wide", "digit", "deep")
QUESTIONS = 4


def record(one: art.Trajectory) -> dict[str, Any]:
    return {"reward": one.reward, "metrics": one.metrics, "metadata": one.metadata, "tools": one.tools,
            "messages": [dict(message) for message in one.messages()]}  # fmt: skip


def evaluated(folder: Path, category: str, found: list[dict[str, Any]]) -> dict[str, bool]:
    """What `bfcl evaluate` says of the same replies, by the ids of the questions."""
    from bfcl_eval.constants.model_config import MODEL_CONFIG_MAPPING
    from bfcl_eval.eval_checker import eval_runner
    from bfcl_eval.model_handler.api_inference.openai_completion import OpenAICompletionsHandler

    known = MODEL_CONFIG_MAPPING.items()
    model = next(
        name for name, one in known if one.model_handler is OpenAICompletionsHandler and one.is_fc_model
    )
    ids = [one["metadata"]["scenario_id"].rpartition("/")[2] for one in found]
    rows = [
        {"id": name, "result": result_of(one["messages"][-1])} for name, one in zip(ids, found, strict=True)
    ]
    results, scores = folder / "result", folder / "score"
    place = results / model.replace("/", "_")
    place.mkdir(parents=True)
    file = place / f"BFCL_v4_{category}_result.json"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with redirect_stdout(sys.stderr):
        eval_runner.main([model], [category], results, scores, partial_eval=True)
    (score,) = scores.rglob(f"BFCL_v4_{category}_score.json")
    wrong = {json.loads(line)["id"] for line in score.read_text().splitlines()[1:]}
    return {name: name not in wrong for name in ids}


def result_of(message: dict[str, Any]) -> Any:
    """A reply as BFCL's own handler of a model with tools keeps it."""
    calls = message.get("tool_calls") or []
    made = [{one["function"]["name"]: one["function"]["arguments"]} for one in calls]
    return made or message.get("content") or ""


def classes_of(environment: Any, scenario: Any) -> list[str]:
    """The classes of BFCL whose functions a conversation has."""
    return list(environment._questions[scenario.data["question"]].checked["involved_classes"])


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
    with TemporaryDirectory() as folder, variable_set("OPENAI_API_KEY", "none"):
        asked = {name: found[name] for name in found if name.partition("/")[0] in EVALUATED}
        found["evaluated"] = {
            name: evaluated(Path(folder, name), name.partition("/")[0], played)
            for name, played in asked.items()
        }
    environment = find_environment(f"bfcl:{TURNS}", val=3)
    for reply in ("right", "right again", "none", "name", "broken", "forbidden", "endless"):
        model = art.Model(name="turns", project="p", inference_model_name=f"{TURNS}/{reply}",
                          inference_base_url=base_url, inference_api_key=key)  # fmt: skip
        rollouts = [environment.rollout(model, one, max_tokens=64) for one in environment.scenarios("val")]
        found[f"{TURNS}/{reply}"] = [record(one) for one in await asyncio.gather(*rollouts)]
    whole = find_environment(f"bfcl:{TURNS}", train=1000, val=1)
    counting = [one for one in whole.scenarios("train") if "MathAPI" in classes_of(whole, one)][:1]
    for reply in HUGE:
        model = art.Model(name="turns", project="p", inference_model_name=f"{TURNS}/{reply}",
                          inference_base_url=base_url, inference_api_key=key)  # fmt: skip
        found[f"{TURNS}/{reply}"] = [record(await whole.rollout(model, one)) for one in counting]
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
