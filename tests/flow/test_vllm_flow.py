"""A real vLLM behind the whole house: trained against, sampled from by step, killed under load.

One program, for its server takes half a minute to start, and again after the kill.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

import art
from waiting import until

ENVIRONMENT = Path(__file__).parents[2] / ".venv-vllm"
OPTIONS = {
    "engine": {"name": "vllm", "options": {"environment": str(ENVIRONMENT), "threads": 1}},
    "trainer": {"options": {"threads": 1}},
    "control": {"health_interval": 0.2, "restart_wait": 0.05},
}


REPLY = {
    "type": "object",
    "properties": {"answer": {"enum": ["yes", "no", "maybe"]}, "times": {"type": "integer"}},
    "required": ["answer", "times"],
    "additionalProperties": False,
}
ANSWER = {"type": "function", "function": {"name": "answer", "parameters": REPLY}}


async def one_reply(
    model: art.TrainableModel, name: str | None = None, max_tokens: int = 8, **given: Any
) -> art.Trajectory:
    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "yes, no or maybe?"}], reward=0.0
    )
    completion = await model.openai_client().chat.completions.create(
        model=name or model.get_inference_name(),
        messages=trajectory.messages(),
        max_tokens=max_tokens,
        **given,
    )
    trajectory.messages_and_choices.append(completion.choices[0])
    return trajectory


SHAPED: Sequence[dict[str, Any]] = (
    {"response_format": {"type": "json_schema", "json_schema": {"name": "reply", "schema": REPLY}}},
    {"extra_body": {"guided_regex": "(yes|no|maybe){1,3}"}},
    {"extra_body": {"guided_choice": ["yes", "no", "maybe"]}, "temperature": 0.8},
    {"extra_body": {"guided_grammar": 'start: /[a-c]/ ("x" | "y")*'}, "logit_bias": {"67": 3.0}},
    {"tools": [ANSWER], "tool_choice": "required", "presence_penalty": 0.5},
    {"frequency_penalty": 0.7, "extra_body": {"repetition_penalty": 1.2, "min_tokens": 3}},
)
"""What a request may add to the distribution of its reply."""


def step_of(trajectory: art.Trajectory) -> int:
    return trajectory.messages_and_choices[-1].model_extra["step"]


def rewarded(trajectories: Sequence[art.Trajectory]) -> art.TrajectoryGroup:
    for number, trajectory in enumerate(trajectories):
        trajectory.reward = float(number)
    return art.TrajectoryGroup(trajectories)


def vllm_processes() -> list[psutil.Process]:
    """The server and the processes that it started, the server first."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            command = " ".join(child.cmdline())
        except psutil.Error:  # it has just ended
            continue
        if "vllm.entrypoints" in command or command.startswith("VLLM::"):
            found.append(child)
    return sorted(found, key=lambda process: process.create_time())


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(1800)  # two starts of vLLM, of half a minute each on a quiet machine
async def test_vllm_is_trained_with_killed_and_comes_back(tmp_path: Path) -> None:
    strangers = vllm_processes()
    model = art.TrainableModel(name="vllm-flow", project="flow", base_model="art/nano-games")
    async with art.LocalBackend(path=str(tmp_path), server_options=OPTIONS) as backend:
        await model.register(backend)
        for step, shaped in ((1, [{}] * 4), (2, [given for given in SHAPED for _ in range(3)])):
            attempts = await asyncio.gather(*(one_reply(model, max_tokens=64, **given) for given in shaped))
            assert {step_of(attempt) for attempt in attempts} == {step - 1}
            # The canary inside compares what vLLM and the trainer make of the new adapter.
            result = await model.train([rewarded(attempts)], config=art.TrainConfig(learning_rate=1e-3))
            assert result.step == step
            # Whatever shaped the distribution: it was trained, with the logprobs that it was drawn with.
            assert result.metrics["data/sheet/trained_rollouts"] == len(attempts)
            assert result.metrics["loss/logprob_difference_max"] <= 1e-4
        assert step_of(await one_reply(model)) == 2
        assert step_of(await one_reply(model, f"{model.get_inference_name().partition('@')[0]}@1")) == 1

        before = [process for process in vllm_processes() if process not in strangers]
        assert len(before) >= 2, "the server and its engine"
        open_now = [asyncio.create_task(one_reply(model, max_tokens=400)) for _ in range(12)]
        await asyncio.sleep(0.2)
        before[0].kill()
        replies = await asyncio.wait_for(asyncio.gather(*open_now), 400)
        assert {step_of(reply) for reply in replies} == {2}, "the adapter is back, and nothing was lost"
        _, alive = psutil.wait_procs(before, timeout=240)
        assert not alive, "nothing of the first server is left behind"
        after: list[psutil.Process] = []

        def came_back() -> bool:
            # Short replies may all have ended before the kill: then nobody has waited for it yet.
            after[:] = [process for process in vllm_processes() if process not in strangers]
            return bool(after)

        await until(came_back, timeout=240)
        assert not set(after) & set(before)
        attempts = await asyncio.gather(*(one_reply(model) for _ in range(4)))
        assert (await model.train([rewarded(attempts)], config=art.TrainConfig(learning_rate=1e-3))).step == 3
    assert not psutil.wait_procs(after, timeout=240)[1], "it ends with its backend"
