"""Benchmark charts: train a little, compare with a prompted model, draw both charts from the logs.

python v05_benchmark_charts.py [STEPS]
"""

import asyncio
import itertools
import sys

import art
from art.local import LocalBackend
from art.utils.benchmarking.charts import percentage_comparison_bar_chart, training_progress_chart
from art.utils.benchmarking.load_trajectories import load_trajectories
from art.utils.benchmarking.types import BenchmarkModelKey

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
PROJECT = "yes-no-maybe"
WORDS = ("yes", "no", "maybe")
PROMPTS = [f"respond with {a}, {b} or {c}" for a, b, c in itertools.permutations(WORDS)]
REWARDS = {"yes": 0.5, "no": 0.75, "maybe": 1.0}


async def rollout(model: art.Model, prompt: str) -> art.Trajectory:
    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": prompt}], metadata={"scenario_id": prompt}
    )
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=4, temperature=1.0
    )
    choice = completion.choices[0]
    trajectory.messages_and_choices.append(choice)
    word = (choice.message.content or "").strip().lower()
    trajectory.reward = REWARDS.get(word, 0.0)
    trajectory.metrics["maybe"] = word == "maybe"
    return trajectory


async def attempts(model: art.Model, each: int) -> list[art.TrajectoryGroup]:
    return await art.gather_trajectory_groups(
        (art.TrajectoryGroup(rollout(model, prompt) for _ in range(each)) for prompt in PROMPTS),
        pbar_desc=None,
    )


async def main() -> None:
    with LocalBackend() as backend:
        model = art.TrainableModel(name="agent-001", project=PROJECT, base_model="art/nano-games")
        await model.register(backend)
        baseline = art.Model(
            name="base",
            project=PROJECT,
            inference_model_name="art/nano-games",
            inference_base_url=model.inference_base_url,
            inference_api_key=model.inference_api_key,
        )
        await baseline.log(await attempts(baseline, 4), split="val")
        for _ in range(await model.get_step(), STEPS):
            await model.log(await attempts(model, 4), split="val")
            groups = await attempts(model, 8)
            result = await backend.train(model, groups, learning_rate=2e-3)
            await model.log(groups, metrics=result.metrics, step=result.step, split="train")
        await model.log(await attempts(model, 4), split="val")

    df = await load_trajectories(PROJECT, models=["agent-001", "base"])
    models = [BenchmarkModelKey("agent-001", "Ours"), BenchmarkModelKey("base", "Untrained")]
    progress = training_progress_chart(df, "reward", models=models, title="Reward", perfect_score=1.0)
    progress.savefig("progress.png")
    percentage_comparison_bar_chart(df, "maybe", models=models).savefig("comparison.png")
    print(f"{len(df)} trajectories")


asyncio.run(main())
