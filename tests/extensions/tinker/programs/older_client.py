"""A program for an older release of the client: trains, saves, goes on, samples, downloads, ends.
Prints JSON.

python older_client.py
"""

from __future__ import annotations

import asyncio
import io
import json
import sys
import tarfile
import urllib.request
from typing import Any
from urllib.parse import urlparse

import tinker
from tinker import types

BASE = "art/nano-games"
TEXT = [260, 261, 262, 263, 264, 265]


def datum(weights: list[float]) -> types.Datum:
    inputs = {"target_tokens": TEXT[1:], "weights": weights}
    return types.Datum(model_input=types.ModelInput.from_ints(TEXT[:-1]), loss_fn_inputs=inputs)


def columns(found: Any) -> list[dict[str, Any]]:
    outputs = found.loss_fn_outputs
    return [
        {name: [one.dtype, list(one.shape or []), list(one.data)] for name, one in row.items()}
        for row in outputs
    ]


def weighted(data: Any, logprobs: Any) -> Any:
    """Cross-entropy, as a loss of the program's own."""
    import torch

    parts = [
        -(one * torch.tensor(datum.loss_fn_inputs["weights"].data)).sum()
        for datum, one in zip(data, logprobs, strict=True)
    ]
    return sum(parts), {}


async def unload(model_id: str) -> Any:
    async with tinker._client.AsyncTinker() as client:
        future = await client.models.unload(request=types.UnloadModelRequest(model_id=model_id))
        asked = types.FutureRetrieveRequest(request_id=future.request_id)
        reply = await client.futures.with_raw_response.retrieve(request=asked)
        return await reply.json()


def main() -> None:
    service = tinker.ServiceClient()
    training = service.create_lora_training_client(base_model=BASE, rank=4, seed=3)
    data = [datum([0.0, 0.0, 1.0, 1.0, 1.0]), datum([1.0] * 5)]
    saved = training.save_state(name="begin").result().path
    told: dict[str, Any] = {"scored": columns(training.forward(data, "cross_entropy").result())}
    batch = training.forward_backward(data, "cross_entropy")
    moved = training.optim_step(types.AdamParams(learning_rate=1e-3))
    told["trained"], told["metrics"] = columns(batch.result()), dict(batch.result().metrics)
    told["moved"] = moved.result() is not None
    told["after"] = columns(training.forward(data, "cross_entropy").result())
    training.load_state(saved).result()
    told["loaded"] = columns(training.forward(data, "cross_entropy").result())
    told["custom"] = columns(training.forward_backward_custom(data, loss_fn=weighted).result())
    sampler = training.save_weights_and_get_sampling_client(name="now")
    params = types.SamplingParams(temperature=0.0, max_tokens=4, seed=1)
    prompt = types.ModelInput.from_ints(TEXT)
    answer = sampler.sample(prompt, 2, params, include_prompt_logprobs=True, topk_prompt_logprobs=2).result()
    told["samples"] = [[len(one.tokens), len(one.logprobs), one.stop_reason] for one in answer.sequences]
    told["prompt"] = [one is None for one in answer.prompt_logprobs]
    told["top"] = [None if one is None else len(one) for one in answer.topk_prompt_logprobs]
    place = urlparse(training.save_weights_for_sampler(name="end").result().path)
    rest = service.create_rest_client()
    url = rest.get_checkpoint_archive_url(place.netloc, place.path.lstrip("/")).result().url
    with (
        urllib.request.urlopen(url, timeout=60) as reply,
        tarfile.open(fileobj=io.BytesIO(reply.read())) as tar,
    ):
        told["archive"] = sorted(tar.getnames())
    told["unloaded"], told["run"] = asyncio.run(unload(training.model_id)), training.model_id
    try:
        training.forward(data, "cross_entropy").result()
    except tinker.TinkerError as error:
        told["refused"] = str(error)
    sys.stdout.write(json.dumps(told))


main()
