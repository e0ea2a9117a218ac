"""Raw completions and responses of a user's own client train like chat completions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import art
from waiting import DEADLINE_S

LOOK = {
    "type": "function",
    "name": "search",
    "parameters": {"type": "object", "properties": {"keyword": {"type": "string"}}, "required": ["keyword"]},
    "strict": False,
}


async def raw(client: openai.AsyncOpenAI, model: str, told: dict[str, list[int]]) -> None:
    """Two completions, the second one behind the ids of the first."""
    ids: Any = "<|im_start|>user\nyes, no or maybe?<|im_end|>\n<|im_start|>assistant\n"
    for _ in range(2):
        reply = await client.completions.create(
            model=model, prompt=ids, max_tokens=6, extra_body={"return_token_ids": True}
        )
        fields = reply.choices[0].model_extra or {}
        told[fields["sample_id"]] = fields["token_ids"]
        ids = [*fields["prompt_token_ids"], *fields["token_ids"]]


async def responses(client: openai.AsyncOpenAI, model: str, told: dict[str, list[int]]) -> None:
    """Three turns, continued by items and by id, whole and streamed."""
    options: dict[str, Any] = {"model": model, "max_output_tokens": 24, "tools": [LOOK]}
    # As the API has it, instructions are those of one response: who continues it sends them again.
    options["instructions"] = "You answer questions about an inbox."
    first = await client.responses.create(input="Who is the owner of atlas?", **options)
    history = [item.model_dump(exclude_unset=True) for item in first.output]
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "atlas owner k7"}
        for item in history
        if item["type"] == "function_call"
    ]
    news: list[Any] = [*results, {"role": "user", "content": "And now?"}]
    second = await client.responses.create(input=news, previous_response_id=first.id, **options)
    stream = await client.responses.create(
        input="And now?", previous_response_id=second.id, stream=True, **options
    )
    *_, last = [event async for event in stream]
    for reply in (first, second, last.response):
        told[reply.model_extra["sample_id"]] = []


@pytest.mark.slow
async def test_raw_completions_and_responses_train(tmp_path: Path) -> None:
    model = art.TrainableModel(name="polyglot", project="flow", base_model="art/nano-tools")
    told: dict[str, list[int]] = {}

    async def rollout(way: Any, reward: float) -> art.Trajectory:
        async with art.rollout(model) as scope:
            client = openai.AsyncOpenAI(base_url=scope.base_url, api_key=scope.api_key, max_retries=0)
            await way(client, model.get_inference_name(), told)
        scope.trajectory.reward = reward
        return scope.trajectory

    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        groups = await art.gather_trajectory_groups(
            art.TrajectoryGroup(rollout(way, reward) for reward in (0.0, 1.0)) for way in (raw, responses)
        )
        kept = [sample for group in groups for trajectory in group for sample in sampled(trajectory)]
        assert sorted(kept) == sorted(told), "each completion is in a trajectory, once"
        headers = {"Authorization": f"Bearer {model.inference_api_key}"}
        async with httpx.AsyncClient(
            base_url=str(model.inference_base_url), headers=headers, timeout=DEADLINE_S
        ) as http:
            samples = [(await http.get(f"samples/{name}")).json() for name in kept]
        assert [s["fork_reason"] for s in samples] == [None] * 10, [
            (s["finish_reason"], s["fork_reason"]) for s in samples
        ]
        assert [sample["parent_id"] is None for sample in samples] == [True, False] * 2 + [
            True,
            False,
            False,
        ] * 2
        assert all(not told[s["sample_id"]] or told[s["sample_id"]] == s["completion_ids"] for s in samples)
        result = await backend.train(model, groups, learning_rate=1e-4)
    assert result.step == 1
    assert result.sheet.fates["trained"].rollouts == 4
    assert result.sheet.fates["trained"].tokens == sum(len(sample["completion_ids"]) for sample in samples)
    assert result.metrics["loss/logprob_difference_max"] < 1e-4


def sampled(trajectory: art.Trajectory) -> list[str]:
    histories = [trajectory, *trajectory.additional_histories]
    items = [item for history in histories for item in history.messages_and_choices]
    return [item.model_extra["sample_id"] for item in items if not isinstance(item, dict)]
