"""A user's program on a real model, its times as lines of JSON: `python -m bench.real.program JOB.json`.

    {"model", "folder", "task": "readme" | "grpo" | "empty", "steps", "groups", "size"}

    {"registered": seconds}                       from the backend's start to the model that serves
    {"step": n, "seconds": s, "gather": s, "cpu": s, "metrics": {...}}

`readme` is README's program with at most 6 tokens a rollout, `grpo` a step of prompts of about 98 tokens and
32 new ones. In a step of `empty` all rewards are the same, so that nothing is trained. `cpu` is the time of
the whole tree of processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from openai.types.chat import ChatCompletionUserMessageParam

import art

TOPICS = ("river", "winter", "baker", "lighthouse", "garden", "train", "library", "mountain")
REQUEST = (
    "Write a story about a {topic}. It has at least ten long sentences, names people and places, begins in "
    "the middle of what happens, and never says how it ends. Do not write a title, and do not explain "
    "anything. The first word of the story is the name of the person whom it is about."
)


def question(task: str, number: int) -> tuple[ChatCompletionUserMessageParam, int]:
    """The prompt of one group, and the most tokens of its rollouts."""
    if task == "grpo":
        return {"role": "user", "content": REQUEST.format(topic=TOPICS[number % len(TOPICS)])}, 32
    return {"role": "user", "content": "respond with yes, no or maybe"}, 6


async def rollout(model: art.TrainableModel, task: str, number: int) -> art.Trajectory:
    asked, tokens = question(task, number)
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=[asked], max_tokens=tokens
    )
    choice = completion.choices[0]
    text = choice.message.content or ""
    reward = 0.0 if task == "empty" else float(text.count("e") + len(text) % 7)
    return art.Trajectory(messages_and_choices=[asked, choice], reward=reward)


def cpu_seconds() -> float:
    """Of this process and of all that it started."""
    here = psutil.Process()
    spent = 0.0
    for process in (here, *here.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        spent += times.user + times.system
    return spent


def resident_mb() -> float:
    """Of this process and of all that it started: the shares of shared pages are counted once."""
    here = psutil.Process()
    pss = 0
    for process in (here, *here.children(recursive=True)):
        try:
            pss += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return pss / 2**20


async def run(job: dict[str, Any]) -> None:
    begun = time.perf_counter()
    task = job["task"]
    model = art.TrainableModel(name="real", project="bench", base_model=job["model"], report_metrics=[])
    async with art.LocalBackend(path=Path(job["folder"]), **job.get("backend", {})) as backend:
        await model.register(backend)
        say({"registered": time.perf_counter() - begun, "cpu": cpu_seconds(), "mb": resident_mb()})
        for step in range(job["steps"]):
            started, spent = time.perf_counter(), cpu_seconds()
            groups = await art.gather_trajectory_groups(
                (
                    art.TrajectoryGroup(rollout(model, task, number) for _ in range(job["size"]))
                    for number in range(job["groups"])
                ),
                pbar_desc=None,
            )
            gathered = time.perf_counter()
            result = await model.train(groups, learning_rate=1e-4)
            done = time.perf_counter()
            say(
                {
                    "step": step,
                    "seconds": done - started,
                    "gather": gathered - started,
                    "cpu": cpu_seconds() - spent,
                    "mb": resident_mb(),
                    "metrics": result.metrics,
                }
            )


def say(line: dict[str, Any]) -> None:
    os.write(1, (json.dumps(line) + "\n").encode())


if __name__ == "__main__":
    asyncio.run(run(json.loads(Path(sys.argv[1]).read_text())))
