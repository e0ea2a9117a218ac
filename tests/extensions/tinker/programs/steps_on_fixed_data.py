"""Trains on fixed data and on its own samples with the real SDK, and says each part: what comes out depends
on nothing else.

    python steps_on_fixed_data.py STEPS FOLDER

Each step adds the gradients of four requests with different losses: the second in two chunks, the third with
a loss of the program's own, which is traced with the torch of FOLDER and run by the server, the last on what
the models of the first and of the newest step said after the step before.
"""

from __future__ import annotations

import random
import sys
from typing import Any

sys.path += sys.argv[2:3]  # behind the SDK's own packages
import tinker
from tinker import types

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
SAMPLED = 64
"""Tokens of a sample."""


def datum(dice: random.Random, loss: str) -> types.Datum:
    ids = [dice.randrange(200) for _ in range(12)]
    targets = ids[1:]
    inputs: dict[str, Any] = {"target_tokens": targets}
    if loss == "cross_entropy":
        inputs["weights"] = [1.0] * len(targets)
    else:
        if loss != "custom":
            inputs["logprobs"] = [-dice.random() for _ in targets]
        inputs["advantages"] = [dice.uniform(-1, 1) for _ in targets]
    return types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=inputs)


def learnt_from(said: list[int]) -> types.Datum:
    ids = [*PROMPT, *said]
    weights = [0.0] * (len(PROMPT) - 1) + [0.1] * len(said)
    return types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={"target_tokens": ids[1:], "weights": weights},
    )


def squared(logprobs: Any, advantages: Any) -> Any:
    loss = (advantages * logprobs).square().sum()
    return loss, {"custom/size:sum": (logprobs * 0 + 1).sum()}


def sample(sampler: tinker.SamplingClient, seed: int) -> list[int]:
    params = types.SamplingParams(max_tokens=SAMPLED, seed=seed, temperature=1.0, stop=[])
    (found,) = sampler.sample(types.ModelInput.from_ints(PROMPT), 1, params).result().sequences
    return list(found.tokens)


def say(words: str) -> None:
    print(words, flush=True)


def main() -> None:
    steps, dice = int(sys.argv[1]), random.Random(5)
    service = tinker.ServiceClient()
    client = service.create_lora_training_client(base_model="art/nano-games", rank=4, seed=1).result()
    config = client.holder._client_config
    client.holder._client_config = config.model_copy(update={"fwdbwd_max_chunk_len": 3})
    own = service.create_custom_loss(squared, {"logprobs": 1, "advantages": 1}).result()
    assert own.loss_id is not None
    say(f"begun {client.model_id}")
    samplers: list[tinker.SamplingClient] = []
    said: list[list[int]] = [PROMPT]
    for step in range(steps):
        say(f"training {step}")
        added = [
            client.forward_backward([datum(dice, "cross_entropy") for _ in range(2)], "cross_entropy"),
            client.forward_backward([datum(dice, "ppo") for _ in range(5)], "ppo"),
            client.forward_backward_custom([datum(dice, "custom")], own),
            client.forward_backward([learnt_from(one) for one in said], "cross_entropy"),
        ]
        moved = client.optim_step(types.AdamParams(learning_rate=1e-3))
        losses = [one.result().metrics["loss:sum"] for one in added]
        say(f"step {step} {losses} {moved.result().metrics}")
        say(f"saving {step}")
        samplers = [*samplers[:1], client.save_weights_and_get_sampling_client().result()]
        say(f"sampling {step}")
        said = [sample(one, seed=step) for one in samplers]
        say(f"said {step} {said}")
    say(f"saved {client.save_state('end').result().path}")
    service.close("success").result()


if __name__ == "__main__":
    main()
