"""The steps that `bench.tinker.steps` measures, in the environment of the real SDK.

    python -m bench.tinker.sdk_program steps BASE PROMPTS EACH TOKENS LOOPS
    python -m bench.tinker.sdk_program adapters BASE COUNT ROWS LOOPS

It prints one line of JSON. `steps`: the seconds of each loop, and what the last one trained on, for the peer.
`adapters`: the steps a second of so many runs that train at the same time, of ranks from 4 to 64.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from typing import Any

import tinker
from tinker import types


def prompt_of(dice: random.Random, tokenizer: Any) -> list[int]:
    text = f"Question: What is {dice.randrange(100)} + {dice.randrange(100)}?\nAnswer:"
    return list(tokenizer.encode(text))


def datum_of(prompt: list[int], tokens: list[int], logprobs: list[float], advantage: float) -> types.Datum:
    ids, context = prompt + tokens, len(prompt) - 1
    inputs: dict[str, Any] = {
        "target_tokens": ids[1:],
        "logprobs": [0.0] * context + logprobs,
        "advantages": [0.0] * context + [advantage] * len(tokens),
    }
    return types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=inputs)


def measure_steps(base: str, prompts: int, each: int, tokens: int, loops: int) -> dict[str, Any]:
    service, dice = tinker.ServiceClient(), random.Random(0)
    client = service.create_lora_training_client(base_model=base, rank=16, seed=0).result()
    tokenizer, rows = client.get_tokenizer(), []
    wanted = types.SamplingParams(max_tokens=tokens, temperature=1.0)
    for _ in range(loops):
        begin = time.monotonic()
        sampler: Any = client.save_weights_and_get_sampling_client()
        asked = [prompt_of(dice, tokenizer) for _ in range(prompts)]
        waiting = [sampler.sample(types.ModelInput.from_ints(one), each, wanted) for one in asked]
        found = [one.result().sequences for one in waiting]
        sampled = time.monotonic()
        data = [
            datum_of(prompt, list(one.tokens), list(one.logprobs or ()), dice.uniform(-1, 1))
            for prompt, sequences in zip(asked, found, strict=True)
            for one in sequences
        ]
        trained = client.forward_backward(data, "importance_sampling")
        moved = client.optim_step(types.AdamParams(learning_rate=1e-4))
        metrics = trained.result().metrics
        moved.result()
        rows.append({"sample": sampled - begin, "train": time.monotonic() - sampled, **metrics})
    columns = [
        {name: value.tolist() for name, value in one.loss_fn_inputs.items()}
        | {"ids": one.model_input.to_ints()}
        for one in data
    ]
    service.close("success").result()
    return {"loops": rows, "prompts": asked, "data": columns}


def measure_adapters(base: str, count: int, size: int, loops: int) -> dict[str, Any]:
    service, dice = tinker.ServiceClient(), random.Random(0)
    ranks = [(4, 8, 16, 32, 64)[number % 5] for number in range(count)]
    waiting = [service.create_lora_training_client(base_model=base, rank=rank, seed=0) for rank in ranks]
    clients = [one.result() for one in waiting]
    prompt = prompt_of(dice, clients[0].get_tokenizer())
    data = [datum_of(prompt, [dice.randrange(200) for _ in range(32)], [-1.0] * 32, 0.5) for _ in range(size)]
    for loop in range(loops + 1):
        if loop == 1:  # the first one opens the adapters
            begin = time.monotonic()
        made = []
        for client in clients:
            client.forward_backward(data, "importance_sampling")
            made.append(client.optim_step(types.AdamParams(learning_rate=1e-4)))
        for one in made:
            one.result()
    seconds = time.monotonic() - begin
    service.close("success").result()  # frees the adapters
    return {"steps_a_second": count * loops / seconds}


def main() -> None:
    what, base, *numbers = sys.argv[1:]
    measure = {"steps": measure_steps, "adapters": measure_adapters}[what]
    sys.stdout.write(json.dumps(measure(base, *map(int, numbers))) + "\n")
    sys.stdout.flush()
    os._exit(0)  # threads of the SDK that still run can abort an interpreter that ends


if __name__ == "__main__":
    main()
