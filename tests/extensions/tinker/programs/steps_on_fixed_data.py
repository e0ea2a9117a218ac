"""Trains on fixed data with the real SDK, and says each step: what comes out depends on nothing else.

    python steps_on_fixed_data.py STEPS FOLDER

Each step adds the gradients of three requests with different losses: the second in two chunks, the third with
a loss of the program's own, which is traced with the torch of FOLDER and run by the server.
"""

from __future__ import annotations

import random
import sys
from typing import Any

sys.path += sys.argv[2:3]  # behind the SDK's own packages
import tinker
from tinker import types


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


def squared(logprobs: Any, advantages: Any) -> Any:
    loss = (advantages * logprobs).square().sum()
    return loss, {"custom/size:sum": (logprobs * 0 + 1).sum()}


def main() -> None:
    steps, dice = int(sys.argv[1]), random.Random(5)
    service = tinker.ServiceClient()
    client = service.create_lora_training_client(base_model="art/nano-games", rank=4, seed=1).result()
    config = client.holder._client_config
    client.holder._client_config = config.model_copy(update={"fwdbwd_max_chunk_len": 3})
    own = service.create_custom_loss(squared, {"logprobs": 1, "advantages": 1}).result()
    assert own.loss_id is not None
    print(f"begun {client.model_id}", flush=True)
    for step in range(steps):
        first = client.forward_backward([datum(dice, "cross_entropy") for _ in range(2)], "cross_entropy")
        second = client.forward_backward([datum(dice, "ppo") for _ in range(5)], "ppo")
        third = client.forward_backward_custom([datum(dice, "custom")], own)
        moved = client.optim_step(types.AdamParams(learning_rate=1e-3))
        losses = [one.result().metrics["loss:sum"] for one in (first, second, third)]
        print(f"step {step} {losses} {moved.result().metrics}", flush=True)
    print(f"saved {client.save_state('end').result().path}", flush=True)
    service.close("success").result()


if __name__ == "__main__":
    main()
