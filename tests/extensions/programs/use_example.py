"""Uses what `examples/extension` adds: its environment on an endpoint that answers "tac", its
tracker and its loss.
"""

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
    penalties, parameter = await train_with_loss(folder)
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
                "parameter": parameter,
                "penalties": penalties,
            }
        )
    )


async def train_with_loss(folder: str) -> tuple[list[float], str]:
    """Returns the penalty in a step of one update and of three, and why a parameter was refused."""
    model = art.TrainableModel(name="taught", project="p", base_model="art/nano-games")
    async with art.LocalBackend(path=folder) as backend:
        await model.register(backend)
        client = model.openai_client()

        async def rollout(reward: float) -> art.Trajectory:
            messages: art.Messages = [{"role": "user", "content": "Say a number."}]
            reply = await client.chat.completions.create(
                model=model.get_inference_name(), messages=messages, max_completion_tokens=4, temperature=3.0
            )
            return art.Trajectory(messages_and_choices=[*messages, reply.choices[0]], reward=reward)

        group = await art.gather_trajectory_groups(
            [art.TrajectoryGroup(rollout(float(number % 2)) for number in range(4))]
        )
        try:
            await backend.train(model, group, loss_fn="spo", loss_fn_config={"beta": 1.0})
            refused = ""
        except ConfigurationError as error:
            refused = str(error)
        one = await backend.train(model, group, loss_fn="spo", loss_fn_config={"epsilon": 0.3})
        loss = {"name": "spo", "params": {"epsilon": 0.3}}
        algorithm = {"name": "art", "loss": loss, "updates": {"epochs": 3}}
        three = await backend.train(model, group, algorithm=algorithm, learning_rate=1e-2)
        return [step.metrics["loss/penalty"] for step in (one, three)], refused


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
