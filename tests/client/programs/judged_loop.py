"""A loop with a judge whose price nobody knows: python judged_loop.py BASE_URL KEY."""

from __future__ import annotations

import asyncio
import sys

import art
from art.rewards import ruler_score_group


async def rollout(model: art.Model) -> art.Trajectory:
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": "Say something."}])
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=trajectory.messages()
    )
    trajectory.messages_and_choices.append(completion.choices[0])
    return trajectory


async def main(base_url: str, key: str) -> None:
    model = art.Model(
        name="prompted",
        project="judged",
        inference_model_name="player",
        inference_base_url=base_url,
        inference_api_key=key,
        report_metrics=[],
    )

    async def judge(group: art.TrajectoryGroup) -> art.TrajectoryGroup | None:
        params = {"api_base": base_url, "api_key": key}
        return await ruler_score_group(group, "openai/nobody-knows-its-price", params)

    for step in range(2):
        with model.metrics_builder("train").activate_context():
            groups = await art.gather_trajectory_groups(
                [art.TrajectoryGroup(rollout(model) for _ in range(3))], after_each=judge
            )
        await model.log(groups, split="train", step=step)
        print(sorted(float(trajectory.reward) for group in groups for trajectory in group))


asyncio.run(main(*sys.argv[1:]))
