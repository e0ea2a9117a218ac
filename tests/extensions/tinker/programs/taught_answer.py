"""Teaches one answer by rote with the real SDK, and samples before each step. Prints a line of JSON for each
step, and one for the run.

    python taught_answer.py STEPS QUESTION ANSWER
"""

from __future__ import annotations

import json
import sys

import tinker
from tinker import types

SAMPLES = 2
"""At each step."""


def main() -> None:
    steps, question, answer = int(sys.argv[1]), *sys.argv[2:]
    service = tinker.ServiceClient()
    client = service.create_lora_training_client(base_model="art/nano-games", rank=8, seed=0).result()
    tokenizer = client.get_tokenizer()
    prompt = tokenizer.encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")
    ids = prompt + tokenizer.encode(f"{answer}<|im_end|>")
    context = len(prompt) - 1
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={
            "target_tokens": ids[1:],
            "weights": [0.0] * context + [1.0] * (len(ids) - len(prompt)),
        },
    )
    for step in range(steps):
        sampler = client.save_weights_and_get_sampling_client().result()
        wanted = types.SamplingParams(max_tokens=4, temperature=1.0, seed=step)
        found = sampler.sample(types.ModelInput.from_ints(prompt), SAMPLES, wanted).result().sequences
        trained = client.forward_backward([datum], "cross_entropy")
        moved = client.optim_step(types.AdamParams(learning_rate=1e-2))
        told = {
            "step": step,
            "samples": [[list(one.tokens), list(one.logprobs or ())] for one in found],
            "loss": trained.result().metrics["loss:sum"],
            "norm": moved.result().metrics["unclipped_grad_l2:mean"],
        }
        print(json.dumps(told), flush=True)
    path = client.save_weights_for_sampler("taught").result().path
    print(json.dumps({"run": client.model_id, "path": path, "prompt": prompt}), flush=True)
    service.close("success").result()


if __name__ == "__main__":
    main()
