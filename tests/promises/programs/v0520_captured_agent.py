"""An agent that knows nothing of training, captured: groups, rewards inside of the rollout, a named run.

python v0520_captured_agent.py [STEPS] [RUN_NAME]
"""

import asyncio
import random
import sys

from openai import AsyncOpenAI

import art
from art.local import LocalBackend
from art.trajectories import TokenFlag

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 2
RUN_NAME = sys.argv[2] if len(sys.argv) > 2 else "agent-001"
REWARDS = {"yes": 0.5, "no": 0.75, "maybe": 1.0}


async def agent(client: AsyncOpenAI, model: str, question: str) -> str:
    """Asks twice in one conversation; only its client says where the model is."""
    messages = [{"role": "user", "content": question}]
    said = ""
    for _ in range(2):
        completion = await client.chat.completions.create(model=model, messages=messages, max_tokens=4)
        said = (completion.choices[0].message.content or "").strip()
        messages += [
            completion.choices[0].message,
            {"role": "user", "content": "respond with yes, no or maybe"},
        ]
    return said


async def rollout(model: art.TrainableModel, question: str) -> None:
    client = AsyncOpenAI(base_url=model.inference_base_url, api_key=model.inference_api_key)
    said = await agent(client, model.get_inference_name(), question)
    trajectory = art.current_trajectory(require=True)
    trajectory.reward = REWARDS.get(said, 0.0)
    trajectory.metadata["question"] = question
    trajectory.metrics["known"] = said in REWARDS


def questions(seed: int, count: int) -> list[str]:
    dice = random.Random(seed)
    return [f"respond with {', '.join(dice.sample(list(REWARDS), 3))}" for _ in range(count)]


async def main() -> None:
    backend = LocalBackend()
    model = art.TrainableModel(
        name="agent",
        run_name=RUN_NAME,
        project="captured",
        base_model="art/nano-games",
        lora_config=art.LoRAConfig(rank=4, alpha=8),
    )
    await model.register(backend)
    for step in range(await model.get_step(), STEPS):
        groups = await art.gather_trajectory_groups(
            art.trajectory_group(
                (art.trajectory(rollout(model, question)) for _ in range(6)),
                metadata={"scenario": question},
                return_exceptions=True,
            )
            for question in questions(step, 4)
        )
        result = await backend.train(model, groups, learning_rate=1e-3, optimizer_save_interval=5)
        await model.log(groups, metrics=result.metrics, step=result.step, split="train")
        tokens = groups[0].trajectories[0].tokenize()
        sampled = sum(TokenFlag.SAMPLED in flag for flag in tokens.flags)
        exact = all(TokenFlag.EXACT in flag for flag in tokens.flags)
        print(f"step {result.step}: {sampled} of {len(tokens.tokens)} tokens sampled, exact: {exact}")

    with art.Trajectory() as last:
        client = AsyncOpenAI(base_url=model.inference_base_url, api_key=model.inference_api_key)
        await agent(client, model.get_inference_name(), "respond with yes, no or maybe")
    history = last.history().as_chat_completions_history()
    again = art.Trajectory.model_validate_json(last.model_dump_json())
    assert again.history().messages == history.messages
    print(f"{len(last.exchanges.chat_completions)} calls, {len(history.messages)} messages")
    await backend.close()


if __name__ == "__main__":
    asyncio.run(main())
