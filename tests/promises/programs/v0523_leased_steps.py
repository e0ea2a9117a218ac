"""A policy held near its past: a LoRA of its own shape, a lagging reference, and duels of leased steps.

python v0523_leased_steps.py [STEPS]
"""

import asyncio
import random
import sys
import time

import art
from art import adapter_leases
from art.local import LocalBackend

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
REWARDS = {"yes": 0.5, "no": 0.75, "maybe": 1.0}


async def play(model: art.TrainableModel, question: str) -> None:
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=[{"role": "user", "content": question}], max_tokens=4
    )
    trajectory = art.current_trajectory(require=True)
    trajectory.reward = REWARDS.get((completion.choices[0].message.content or "").strip(), 0.0)
    trajectory.metrics["tokens"] = completion.usage.completion_tokens


async def group_of(model: art.TrainableModel, question: str, size: int) -> art.TrajectoryGroup:
    return await art.trajectory_group(art.trajectory(play(model, question)) for _ in range(size))


def questions(seed: int, count: int) -> list[str]:
    dice = random.Random(seed)
    return [f"respond with {', '.join(dice.sample(list(REWARDS), 3))}" for _ in range(count)]


def mean(groups: list[art.TrajectoryGroup]) -> float:
    rewards = [one.reward for group in groups for one in group.trajectories]
    return sum(rewards) / len(rewards)


async def evaluate(backend: LocalBackend, model: art.TrainableModel, step: int) -> None:
    async with backend.exact_adapter_lease(model, step):
        assert adapter_leases.pinned_inference_step(model.name) == step
        groups = [await group_of(model, question, 4) for question in questions(99, 3)]
    assert adapter_leases.pinned_inference_step(model.name) is None
    versions = {one.final_policy_version for group in groups for one in group.trajectories}
    assert versions == {step}, versions
    await model.log(groups, split="val", step=step)


async def main() -> None:
    backend = LocalBackend()
    model = art.TrainableModel(
        name="leased",
        run_name="leased-001",
        project="leases",
        base_model="art/nano-games",
        lora_config=art.LoRAConfig(rank=4, alpha=16, target_modules=["q_proj", "v_proj"], random_state=7),
    )
    await model.register(backend)
    builder = model.metrics_builder("train")
    for step in range(await model.get_step(), STEPS):
        began = time.monotonic()
        groups = list(await asyncio.gather(*(group_of(model, one, 6) for one in questions(step, 4))))
        builder.add_user_timing(step_rollout_s=time.monotonic() - began)
        tokens = sum(one.metrics["tokens"] for group in groups for one in group.trajectories)
        builder.add_data(step_num_scenarios=len(groups), step_rollout_tokens=tokens)
        result = await backend.train(
            model,
            groups,
            learning_rate=1e-3,
            loss_fn="ppo",
            kl_penalty_coef=0.05,
            kl_penalty_step_lag=1,
            kl_penalty_source="sample",
            adam_params=None,
            optimizer_save_interval=5,
            final_training_step=STEPS,
        )
        if result.checkpoint_ready is not None:
            await result.checkpoint_ready
        await model.log(groups, split="train", step=result.step, metrics=result.metrics)
        await evaluate(backend, model, result.step)

    newest = await model.get_step()
    async with backend.adapter_retention_lease(model, 1):
        await model.delete_checkpoints(best_checkpoint_metric="reward/val")
        with adapter_leases.pin_inference_step(model.name, 1) as target:
            assert target.step == 1 and model.get_inference_name() == model.get_inference_name(1)
            older = await group_of(model, questions(7, 1)[0], 4)
    newer = await group_of(model, questions(7, 1)[0], 4)
    for group, step in ((older, 1), (newer, newest)):
        assert {one.initial_policy_version for one in group.trajectories} == {step}
    print(f"step 1: {mean([older]):.2f}, step {newest}: {mean([newer]):.2f}")
    await backend.close()


if __name__ == "__main__":
    asyncio.run(main())
