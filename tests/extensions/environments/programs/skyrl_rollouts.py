"""Environments of SkyRL-Gym, run where the library is installed: prints JSON.

python skyrl_rollouts.py FOLDER BASE_URL KEY           the environments, with an endpoint that plays
python skyrl_rollouts.py turns BASE_URL KEY MODEL      turns that a server of ART has sampled
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import skyrl_gym
from environment_program import model_of
from omegaconf import OmegaConf

import art
from art.environments.adapters.registry import find_environment
from art.types import sample_id


def question(number: int, **more: Any) -> dict[str, Any]:
    return {
        "data_source": "made",
        "prompt": [{"role": "user", "content": f"What is {number} + 0?"}],
        "reward_spec": {"method": "rule", "ground_truth": str(number)},
        "reward_model": {"ground_truth": str(number)},
        "extra_info": {"max_turns": 4},
        **more,
    }


def as_messages(prompt: Any) -> Any:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def of_library(row: Mapping[str, Any], name: str, actions: list[str], **given: Any) -> dict[str, Any]:
    """Returns what the library makes of these actions, without ART."""
    row = json.loads(json.dumps(row))
    extras = {key: value for key, value in row.items() if key not in ("prompt", "env_class")}
    config = OmegaConf.create(given.pop("config", {}))
    world = skyrl_gym.make(name, env_config=config, extras={**extras, **given})
    opening, _ = world.init(as_messages(row["prompt"]))
    seen, rewards, done = list(opening), [], False
    for action in actions:
        assert not done
        output = world.step(action)
        seen.append({"role": "assistant", "content": action})
        seen += [] if output["done"] else output["observations"]
        rewards.append(output["reward"])
        done = output["done"]
    return {"rewards": rewards, "done": done, "said": [one["content"] for one in seen]}


async def compared(model: art.Model, name: str, rows: list[Any], **options: Any) -> list[dict[str, Any]]:
    """Returns each scenario's rollout, with what the library makes of the same replies."""
    environment = find_environment(f"skyrl-gym:{name}", data=rows, **options)
    given = {key: options[key] for key in ("config", "max_turns") if key in options}
    found = []
    for scenario in [*environment.scenarios("val"), *environment.scenarios("train")]:
        one = await environment.rollout(model, scenario)
        said = one.messages()
        actions = [str(message["content"]) for message in said if message["role"] == "assistant"]
        library = of_library(scenario.data["row"], name.rpartition(":")[2], actions, **given)
        turns = [sample_id(turn) for turn in one.messages_and_choices if not isinstance(turn, dict)]
        found.append(
            {
                **{"reward": one.reward, "metrics": one.metrics, "library": library},
                **{"said": [message["content"] for message in said], "turn_rewards": one.turn_rewards},
                "samples": turns,
            }
        )
    return found


async def failed(model: art.Model, name: str, **options: Any) -> str:
    try:
        return str(await compared(model, name, **options))
    except Exception as error:  # noqa: BLE001  # the test looks at it
        return f"{type(error).__name__}: {error}"


def database(folder: Path) -> Path:
    """Returns a folder with a database of Spider's form, which has one table."""
    (folder / "spider" / "database" / "pets").mkdir(parents=True)
    with sqlite3.connect(folder / "spider" / "database" / "pets" / "pets.sqlite") as made:
        made.execute("create table pet (name text, age integer)")
        made.executemany("insert into pet values (?, ?)", [("Rex", 3), ("Tom", 5)])
    made.close()
    return folder


async def play(folder: Path, base_url: str, key: str) -> dict[str, Any]:
    model = model_of("right", base_url, key)
    numbers = [question(number) for number in range(8)]
    pets = [
        question(
            number,
            **{"db_id": "pets", "data": "spider", "prompt": f"Pets: who is older than {number}?"},
            reward_spec={"ground_truth": f"select name from pet where age > {number}"},
        )
        for number in (1, 4, 9)
    ]
    mixed = [*numbers, *(question(number, env_class="aime") for number in range(9)), numbers[0]]
    lines = folder / "rows.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in mixed))
    split = find_environment("skyrl-gym:gsm8k", data=str(lines), val_data=mixed[:2])
    config = {"scale": 0.5}
    return {
        "gsm8k": await compared(model, "gsm8k", numbers),
        "turns": await compared(model, "gsm8k_multi_turn", numbers),
        "cut": await compared(model, "gsm8k_multi_turn", numbers, max_turns=2),
        "aime": await compared(model, "aime", numbers),
        "sql": await compared(model, "text2sql", pets, config={"db_path": str(database(folder))}),
        "own": await compared(model, "registered_gym:lengths", numbers, config=config),
        "splits": {
            name: [one.data["row"]["prompt"][0]["content"] for one in split.scenarios(name)]
            for name in ("train", "val")
        },
        "unknown": await failed(model, "gsm8", rows=numbers),
        "no data": await failed(model, "gsm8k", rows=None),
        "no rows": await failed(model, "gsm8k", rows=[question(1, env_class="aime")]),
        "no file": await failed(model, "gsm8k", rows=str(folder / "missing.jsonl")),
        "one row": await failed(model, "gsm8k", rows=numbers[:1]),
        "max_turns": await failed(model, "gsm8k", rows=numbers, max_turns=0),
        **{
            fault: await failed(
                model, "lengths", rows=[{**row, "fault": fault} for row in numbers], config=config
            )
            for fault in ("raises", "text")
        },
        "config": await failed(model, "lengths", rows=numbers),
        "closed": skyrl_gym.registry["lengths"].entry_point.closed,
    }


async def turns(base_url: str, key: str, name: str) -> dict[str, Any]:
    model = model_of(name, base_url, key)
    prompts = [[{"role": "user", "content": f"respond with {word}"}] for word in ("yes", "no")]
    own: dict[str, Any] = {"config": {"scale": 0.5}, "max_turns": 3}
    own["rows"] = [{"prompt": prompt} for prompt in prompts]
    return {
        "rewarded": await compared(model, "registered_gym:lengths", turn_rewards=True, **own),
        "plain": await compared(model, "registered_gym:lengths", **own),
    }


async def main(first: str, *rest: str) -> None:
    told = await (turns(*rest) if first == "turns" else play(Path(first), *rest))
    print(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
