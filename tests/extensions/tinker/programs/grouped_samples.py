"""Samples groups and trains on some of them, with the real SDK. Prints a line of JSON for each step, and one
for the run.

    python grouped_samples.py STEPS

A step has a group of SAMPLES samples that is trained by PPO, a group of as many whose advantages are zero,
and a rollout of two turns. It also asks for the logprobs of a prompt.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import tinker
from tinker import types

SAMPLES, TOKENS = 4, 5
FIRST, SECOND, TALK = [5, 6, 7, 8], [9, 10, 11], [20, 21, 22, 23, 24]


def datum(prompt: list[int], said: list[types.SampledSequence], between: list[int], advantage: float) -> Any:
    """Of the turns of one rollout, with some ids between them."""
    ids, advantages, logprobs = list(prompt), [0.0] * len(prompt), [0.0] * len(prompt)
    for number, one in enumerate(said):
        more = between if number else []
        ids += [*more, *one.tokens]
        advantages += [0.0] * len(more) + [advantage] * len(one.tokens)
        logprobs += [0.0] * len(more) + list(one.logprobs or ())
    columns: dict[str, Any] = {
        "target_tokens": ids[1:],
        "advantages": advantages[1:],
        "logprobs": logprobs[1:],
    }
    return types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=columns)


def main() -> None:
    service = tinker.ServiceClient()
    client = service.create_lora_training_client(base_model="art/nano-games", rank=4, seed=1).result()
    for step in range(int(sys.argv[1])):
        sampler = client.save_weights_and_get_sampling_client().result()

        def sample(prompt: list[int], count: int, seed: int, sampler: Any = sampler) -> Any:
            params = types.SamplingParams(max_tokens=TOKENS, seed=seed, stop=[])
            return sampler.sample(types.ModelInput.from_ints(prompt), count, params).result().sequences

        first, second = sample(FIRST, SAMPLES, step), sample(SECOND, SAMPLES, 50 + step)
        (turn,) = sample(TALK, 1, step)
        (reply,) = sample([*TALK, *turn.tokens, 30, 31], 1, step)
        sampler.compute_logprobs(types.ModelInput.from_ints(FIRST)).result()
        trained = [datum(FIRST, [one], [], at - 1.5) for at, one in enumerate(first)]
        idle = [datum(SECOND, [one], [], 0.0) for one in second]
        batches = [
            client.forward_backward([*trained, *idle], "ppo"),
            client.forward_backward([datum(TALK, [turn, reply], [30, 31], 2.0)], "importance_sampling"),
        ]
        moved = client.optim_step(types.AdamParams(learning_rate=1e-3))
        for one in (*batches, moved):
            one.result()
        told = {
            name: [list(one.tokens) for one in found]
            for name, found in (("first", first), ("second", second))
        }
        print(json.dumps({**told, "talk": [list(turn.tokens), list(reply.tokens)]}), flush=True)
    client.save_state("end").result()
    print(json.dumps({"run": client.model_id}), flush=True)
    service.close("success").result()


if __name__ == "__main__":
    main()
