"""Runs where the tinker SDK is: many samples and training requests at once, some of them wrong.

    python many_samples.py COUNT TOKENS [wait]

Prints the line `asked` when all are on their way; with `wait`, goes on when a line comes. Then a JSON line:
the samples in their order (the tokens, or the class and the words of the error), those that were asked for
one by one for comparison, and what the training requests brought.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import Future
from typing import Any

import tinker
from method_calls import BASE, RANK
from tinker import types

WRONG_EVERY = 10
"""One of so many prompts is longer than the base model's context."""
AGAIN_EVERY = 7
"""One of so many is asked for by itself, too."""


def datum(number: int, weight: float = 1.0) -> types.Datum:
    ids = [(number * 3 + at) % 200 for at in range(9)]
    columns: dict[str, Any] = {"target_tokens": ids[1:], "weights": [weight] * (len(ids) - 1)}
    return types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=columns)


def prompt(number: int) -> types.ModelInput:
    if number % WRONG_EVERY == WRONG_EVERY - 1:
        return types.ModelInput.from_ints([5] * 2000)
    return types.ModelInput.from_ints([(number * 7 + at) % 200 for at in range(6)])


def outcome(asked: Any) -> Any:
    try:
        found = asked.result(timeout=400)
    except tinker.TinkerError as error:
        return [type(error).__name__, str(error)[:300]]
    if isinstance(found, types.SampleResponse):
        return [one.tokens for one in found.sequences]
    return dict(found.metrics)


def main() -> None:
    count, tokens = int(sys.argv[1]), int(sys.argv[2])
    service = tinker.ServiceClient()
    client = service.create_lora_training_client(BASE, rank=RANK, seed=3).result()
    client.forward_backward([datum(0)], "cross_entropy")
    client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    sampler = client.save_weights_and_get_sampling_client().result()

    def ask(number: int) -> Future[types.SampleResponse]:
        params = types.SamplingParams(max_tokens=tokens, seed=number, temperature=1.0, stop=[])
        return sampler.sample(prompt(number), 2, params)

    asked = [ask(number) for number in range(count)]
    training = [client.forward_backward([datum(number)], "cross_entropy") for number in range(3)]
    training.insert(2, client.forward_backward([datum(9, float("nan"))], "cross_entropy"))
    training.append(client.optim_step(types.AdamParams(learning_rate=1e-3)))
    print("asked", flush=True)
    if sys.argv[3:] == ["wait"]:
        sys.stdin.readline()
    told = {
        "sampled": [outcome(one) for one in asked],
        "trained": [outcome(one) for one in training],
        "again": {number: outcome(ask(number)) for number in range(0, count, AGAIN_EVERY)},
    }
    print(json.dumps(told), flush=True)
    service.close("success").result()


if __name__ == "__main__":
    main()
