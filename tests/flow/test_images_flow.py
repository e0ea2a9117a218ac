"""A vision-language model that vLLM samples and the trainer trains: pictures in two turns, two steps."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import openai
import pytest

import art
from seeing import image_part, picture, save_seeing_base
from waiting import DEADLINE_S

ENVIRONMENT = Path(__file__).parents[2] / ".venv-vllm"
OPTIONS = {
    "engine": {
        "name": "vllm",
        "options": {"environment": str(ENVIRONMENT), "threads": 1, "max_context": 512},
    },
    "trainer": {"options": {"threads": 1}},
}
ODD = (90, 40)
"""A size that the model's tower does not have."""


async def look(model: art.TrainableModel, number: int) -> art.Trajectory:
    """Two turns, a picture in each: the first is the same for all, as it is in attempts at one scenario."""
    first = [{"type": "text", "text": "what is this"}, image_part(picture(1, ODD))]
    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": first}], reward=float(number)
    )
    client = model.openai_client()
    for turn in range(2):
        completion = await client.chat.completions.create(
            model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=12, seed=number
        )
        trajectory.messages_and_choices.append(completion.choices[0])
        if turn == 0:
            second = [image_part(picture(2 + number % 2)), {"type": "text", "text": "and this"}]
            trajectory.messages_and_choices.append({"role": "user", "content": second})
    return trajectory


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_pictures_are_sampled_and_trained_exactly(tmp_path: Path) -> None:
    base = save_seeing_base(tmp_path / "base")
    model = art.TrainableModel(name="seeing", project="images", base_model=str(base))
    async with art.LocalBackend(path=str(tmp_path / "art"), server_options=OPTIONS) as backend:
        await model.register(backend)
        for step in (1, 2):
            attempts = await asyncio.gather(*(look(model, number) for number in range(4)))
            config = art.TrainConfig(learning_rate=1e-3)
            result = await model.train([art.TrajectoryGroup(attempts)], config=config)
            assert result.step == step
            assert result.metrics["data/sheet/trained_rollouts"] == len(attempts)
            # The engine drew from what the trainer computes, pictures, adapters and second turns included.
            assert result.metrics["loss/logprob_difference_max"] <= 1e-4
        client = model.openai_client()
        name = model.get_inference_name()
        asked = {"role": "user", "content": [image_part(picture(5)), {"type": "text", "text": "this"}]}
        stream = await client.chat.completions.create(
            model=name, messages=[asked], max_tokens=6, stream=True, extra_body={"return_token_ids": True}
        )
        chunks = [chunk async for chunk in stream]
        assert min(chunks[0].model_extra["prompt_token_ids"]) >= 0, "placeholders, for other libraries"
        assert chunks[-1].choices[0].finish_reason in ("stop", "length")
        root = str(client.base_url).removesuffix("v1/")
        async with httpx.AsyncClient(
            headers={"Authorization": f"Bearer {client.api_key}"}, timeout=DEADLINE_S
        ) as web:
            reply = await web.post(
                f"{root}tokenize", json={"model": name, "messages": [asked], "return_token_strs": True}
            )
        assert reply.json()["tokens"] == chunks[0].model_extra["prompt_token_ids"]
        far = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}
        with pytest.raises(openai.BadRequestError, match="fetches nothing"):
            await client.chat.completions.create(model=name, messages=[{"role": "user", "content": [far]}])
        torn = image_part(b"no picture")
        with pytest.raises(openai.BadRequestError, match="cannot be read"):
            await client.chat.completions.create(model=name, messages=[{"role": "user", "content": [torn]}])
