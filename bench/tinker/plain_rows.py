"""The peer: the same samples and the same batch in plain torch, row by row, in one process without a server.

It reads one line of JSON, {base, prompts, each, tokens, data, loops}, and prints one, {sample, train}: the
seconds of each loop. Sampling is `transformers.generate` with the adapter on; training is padded rows, PEFT
and AdamW.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

ROWS = 16
"""Of one forward pass: what fits into memory at a real size."""


def padded(rows: list[list[Any]], fill: float, kind: torch.dtype) -> torch.Tensor:
    """[R, T], filled at the right."""
    most = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (most - len(row))] for row in rows], dtype=kind)


def train(model: Any, optimizer: torch.optim.Optimizer, data: list[dict[str, list[Any]]]) -> None:
    for start in range(0, len(data), ROWS):
        rows = data[start : start + ROWS]
        ids = padded([one["ids"] for one in rows], 0, torch.long)
        mask = padded([[1] * len(one["ids"]) for one in rows], 0, torch.long)
        targets = padded([one["target_tokens"] for one in rows], 0, torch.long)
        sampled = padded([one["logprobs"] for one in rows], 0.0, torch.float32)
        advantages = padded([one["advantages"] for one in rows], 0.0, torch.float32)
        logits = model(input_ids=ids, attention_mask=mask).logits.float()
        logprobs = logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
        loss = -((logprobs - sampled).exp() * advantages).sum()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def sample(model: Any, prompts: list[list[int]], each: int, tokens: int) -> None:
    most = max(map(len, prompts))
    rows = [row for row in prompts for _ in range(each)]
    ids = torch.tensor([[*[0] * (most - len(row)), *row] for row in rows])
    mask = torch.tensor([[*[0] * (most - len(row)), *[1] * len(row)] for row in rows])
    with torch.no_grad():
        model.generate(
            input_ids=ids, attention_mask=mask, do_sample=True, max_new_tokens=tokens, pad_token_id=0
        )


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(asked["base"], dtype=torch.float32)
    model = get_peft_model(base, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.0)
    seconds: dict[str, list[float]] = {"sample": [], "train": []}
    for _ in range(asked["loops"]):
        begin = time.monotonic()
        sample(model, asked["prompts"], asked["each"], asked["tokens"])
        sampled = time.monotonic()
        train(model, optimizer, asked["data"])
        seconds["sample"].append(sampled - begin)
        seconds["train"].append(time.monotonic() - sampled)
    sys.stdout.write(json.dumps(seconds) + "\n")


if __name__ == "__main__":
    main()
