"""Rollouts beside training: a pipeline with its numbers in one object, a lagging reference, mixed spellings.

python v0523_pipeline.py [STEPS]
"""

import asyncio
import random
import sys

import art
from art.local import LocalBackend
from art.pipeline_trainer import PipelineTrainer

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
REWARDS = {"yes": 0.5, "no": 0.75, "maybe": 1.0}


async def play(model: art.TrainableModel, question: str) -> None:
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=[{"role": "user", "content": question}], max_tokens=4
    )
    art.current_trajectory(require=True).reward = REWARDS.get(
        (completion.choices[0].message.content or "").strip(), 0.0
    )


async def rollout(model: art.TrainableModel, scenario: dict, config: None) -> art.TrajectoryGroup:
    return await art.trajectory_group(art.trajectory(play(model, scenario["question"])) for _ in range(6))


async def main() -> None:
    dice = random.Random(3)
    scenarios = [{"question": f"respond with {', '.join(dice.sample(list(REWARDS), 3))}"} for _ in range(200)]
    backend = LocalBackend()
    model = art.TrainableModel(
        name="piped", run_name="piped-001", project="pipeline", base_model="art/nano-games"
    )
    await model.register(backend)
    trainer = PipelineTrainer(
        model,
        backend,
        rollout,
        scenarios,
        None,
        pipeline=art.PipelineRuntimeConfig(num_rollout_workers=4, min_batch_size=2, max_batch_size=4),
        learning_rate=1e-3,
        loss_fn="cispo",
        max_steps=STEPS,
        max_steps_off_policy=None,
        limit_mean_steps_off_policy=2.0,
        kl_penalty_coef=0.01,
        kl_penalty_step_lag=1,
        optimizer_save_interval=5,
        eval_at_start=False,
    )
    trainer.apply_pipeline_settings(art.PipelineRuntimeConfig(num_rollout_workers=3, min_batch_size=2))
    await trainer.train()
    print(f"at step {await model.get_step()}")
    await backend.close()


if __name__ == "__main__":
    asyncio.run(main())
