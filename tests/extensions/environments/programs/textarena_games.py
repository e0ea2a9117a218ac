"""Games of textarena with models that are functions, run where the library is installed: prints JSON.

python textarena_games.py BASE_URL KEY
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from typing import Any

import art
from art.environments.adapters.registry import find_environment

GAME = "textarena:TicTacToe-v0"


def last_move(observation: str) -> str:
    """An opponent of a user: takes the last free cell."""
    return "[" + observation.rpartition("[")[2].partition("]")[0] + "]"


def offer(turn: str) -> str:
    """The end of a turn's text."""
    return turn[turn.rindex("Available") :]


def record(one: art.Trajectory) -> dict[str, Any]:
    reward = one.reward.reason if isinstance(one.reward, art.Unscored) else one.reward
    users = [str(message["content"]) for message in one.messages() if message["role"] == "user"]
    replies = [message["content"] for message in one.messages() if message["role"] == "assistant"]
    return {"reward": reward, "seat": one.metadata["seat"], "show": one.metadata["show"], "users": users,
            "replies": replies, "metrics": one.metrics}  # fmt: skip


async def main(base_url: str, key: str) -> None:
    def model(name: str) -> art.Model:
        return art.Model(
            name=name,
            project="p",
            inference_model_name=name,
            inference_base_url=base_url,
            inference_api_key=key,
        )

    first, found = model("first-cell"), {}
    own = find_environment("textarena:TicTacToe-v0", opponent="self")
    scenario = own.scenarios("train")[0]
    found["play"] = [record(one) for one in await own.play(first, scenario, seed=1)]  # type: ignore[attr-defined]
    for name, options in {
        "function": {"opponent": "textarena_games:last_move", "seat": 1},
        "model": {"opponent": model("last-cell"), "seat": 0},
        "rewritten": {"opponent": model("last-cell"), "seat": 0, "rewrite": "textarena_games:offer"},
        "short": {"opponent": model("last-cell"), "seat": 0, "last_board": True},
        "cut": {"opponent": model("last-cell"), "seat": 0, "max_turns": 2},
    }.items():
        environment = find_environment(GAME, **options)
        found[name] = record(await environment.rollout(first, environment.scenarios("val")[0], seed=1))

    random.seed(7)
    expected = random.Random(7).random()
    environment = find_environment("textarena:KuhnPoker-v0")
    scenarios = environment.scenarios("train")[:6]
    alone = [await environment.rollout(first, one, seed=3) for one in scenarios]
    together = await asyncio.gather(*(environment.rollout(first, one, seed=3) for one in scenarios))
    found["alone"] = [record(one) for one in alone]
    found["together"] = [record(one) for one in together]
    found["global generator untouched"] = random.random() == expected

    columns = find_environment("textarena:ConnectFour-v0", seat=1)  # it lists no moves
    try:
        await columns.rollout(first, columns.scenarios("train")[0])
    except art.errors.ConfigurationError as error:
        found["no moves"] = str(error)
    broken = find_environment("textarena:Countdown-v0")
    try:
        await broken.rollout(first, broken.scenarios("train")[0])
    except art.errors.EnvironmentFailedError as error:
        found["reward is a text"] = str(error)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
