"""Uses what `examples/extension` adds: its environment on an endpoint that answers "tac", and its tracker."""

from __future__ import annotations

import asyncio
import json
import sys

import art
from art.environments.adapters.registry import find_environment
from art.errors import ConfigurationError
from art_extensions.testing import LlmServer


async def main(folder: str) -> None:
    environment = find_environment("spelling:animals", val=3)
    with LlmServer(lambda body: "tac") as server:
        model = art.Model(
            name="m",
            project="p",
            base_path=folder,
            report_metrics=["csv"],
            inference_model_name="any",
            inference_base_url=server.base_url,
            inference_api_key=server.key,
        )
        one = await environment.rollout(model, environment.scenarios("train")[0], seed=1)
    await model.log(metrics={"right": 0.5}, step=3)
    try:
        find_environment("spelling:verbs")
    except ConfigurationError as error:
        refused = str(error)
    print(
        json.dumps(
            {
                "sizes": [len(environment.scenarios(split)) for split in ("train", "val")],
                "show": one.metadata["show"],
                "reward": one.reward,
                "refused": refused,
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
